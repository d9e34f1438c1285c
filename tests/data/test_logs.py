"""Logs of other tools, in the layout that each of them documents."""

import json
import math
import struct
from binascii import crc32
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pyarrow as pa
import pytest

from calibrant.data import Columns, load_predictions
from calibrant.errors import CalibrantError


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def refusal(path, columns=None, **options):
    with pytest.raises(CalibrantError) as caught:
        load_predictions(path, columns=columns, **options)
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path.name}: ")


def lm_eval_sample(number, scores, target, acc=None, **doc):
    """Return a sample as lm-evaluation-harness writes it: responses and targets are text."""
    texts = [f" option {place}" for place in range(len(scores))]
    return {
        "doc_id": number,
        "doc": {"question": "?", **doc},
        "target": str(target),
        "arguments": {f"gen_args_{i}": {"arg_0": "?", "arg_1": text} for i, text in enumerate(texts)},
        "resps": [[[str(score), "False"]] for score in scores],
        "filtered_resps": [[str(score), "False"] for score in scores],
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": "0",
        "prompt_hash": "0",
        "target_hash": "0",
        **({} if acc is None else {"acc": acc}),
    }


def test_lm_eval_samples_with_as_many_options_become_classes(tmp_path):
    rows = [
        lm_eval_sample(0, [-1.0, -3.0], 0, 1.0, subject="law"),
        lm_eval_sample(1, [-2.0, -0.5], "option 1", 1.0, subject="art"),
        lm_eval_sample(2, [-2.0, -0.5], "A", 0.0, subject="art"),
    ]
    loaded = load_predictions(write(tmp_path / "samples_mmlu_2025-01-31T12-00-00.123.jsonl", rows))
    assert loaded.logits.tolist() == [[-1.0, -3.0], [-2.0, -0.5], [-2.0, -0.5]]
    assert loaded.labels.tolist() == [0, 1, 0]
    assert loaded.outcomes().correct.tolist() == [row["acc"] == 1 for row in rows]
    assert loaded.groups.values == ["law", "art", "art"]


def test_lm_eval_samples_with_fewer_options_in_some_become_confidences_of_the_task(tmp_path):
    rows = [lm_eval_sample(0, [-1.0, -3.0, -2.0], 0), lm_eval_sample(1, [-2.0, -0.5], 0)]
    rows += [{**row, "filter": "other"} for row in rows]
    loaded = load_predictions(write(tmp_path / "samples_arc_easy_2025-01-31T12-00-00.123456.jsonl", rows))
    best = math.exp(-1) / (math.exp(-1) + math.exp(-3) + math.exp(-2))
    assert loaded.confidence.tolist() == pytest.approx([best, 1 / (1 + math.exp(-1.5))])
    assert loaded.correct.tolist() == [True, False]
    assert loaded.signals["margin"].tolist() == pytest.approx([1.0, 1.5])
    assert loaded.groups.values == ["arc_easy", "arc_easy"]


def test_lm_eval_hits_decide_where_the_target_is_no_option(tmp_path):
    rows = [lm_eval_sample(0, [-1.0, -3.0], "[0, 1]", 1.0), lm_eval_sample(1, [-2.0, -0.5], "[0]", 0.0)]
    loaded = load_predictions(
        write(tmp_path / "samples_x.jsonl", rows), columns=Columns(groups="doc.question")
    )
    assert (loaded.k, loaded.correct.tolist(), loaded.groups.names) == (None, [True, False], ("?",))


def test_lm_eval_options_without_their_question_are_left_out(tmp_path):
    rows = [{**lm_eval_sample(0, [-1.0, -3.0, -9.0, -8.0], 0), "acc_mutual_info": 1.0}]
    assert load_predictions(write(tmp_path / "samples_x.jsonl", rows)).logits.tolist() == [[-1.0, -3.0]]


def test_lm_eval_samples_of_generated_text_have_no_confidence(tmp_path):
    rows = [{**lm_eval_sample(0, [1], "4"), "resps": [["4"]], "filtered_resps": ["4"]}]
    assert refusal(write(tmp_path / "samples_gsm8k.jsonl", rows)) == (
        'filtered_resps: expected a log-likelihood for each of several options, got ["4"] in line 1; only '
        "samples of multiple-choice tasks have them"
    )


def inspect_log(path, samples):
    log = {
        "version": 2,
        "status": "success",
        "eval": {"task": "popularity", "model": "m"},
        "samples": samples,
    }
    path.write_text(json.dumps(log, indent=2), encoding="utf-8")
    return path


def inspect_sample(number, value, log_probs=None, scorer="match", score_metadata=None, **metadata):
    logprobs = None if log_probs is None else {"content": [{"token": "x", "logprob": p} for p in log_probs]}
    return {
        "id": number,
        "epoch": 1,
        "input": "?",
        "target": "Yes",
        "output": {"model": "m", "choices": [{"message": {"content": "No"}, "logprobs": logprobs}]},
        "scores": {scorer: {"value": value, "answer": "No", "metadata": score_metadata}},
        "metadata": metadata,
    }


def test_inspect_confidence_in_the_metadata_of_the_score_or_the_sample(tmp_path):
    samples = [
        inspect_sample(1, "C", score_metadata={"confidence": 0.9}, confidence=0.1, topic="law"),
        inspect_sample(2, "I", confidence="0.4", topic="art"),
        inspect_sample(3, "N", confidence=0.5, topic="art"),
        inspect_sample(4, 1.0, confidence=1, topic="law"),
    ]
    path = inspect_log(tmp_path / "log.json", samples)
    loaded = load_predictions(path, columns=Columns(groups="metadata.topic"))
    assert loaded.confidence.tolist() == [0.9, 0.4, 0.5, 1.0]
    assert loaded.correct.tolist() == [True, False, False, True]
    assert loaded.groups.values == ["law", "art", "art", "law"]
    named = load_predictions(path, columns=Columns(confidence="metadata.confidence"))
    assert named.confidence.tolist() == [0.1, 0.4, 0.5, 1.0]


def test_inspect_confidence_of_the_tokens(tmp_path):
    samples = [inspect_sample(1, "C", [-0.1, -0.5]), inspect_sample(2, "I", [-2.0])]
    loaded = load_predictions(inspect_log(tmp_path / "log.json", samples))
    assert loaded.confidence.tolist() == pytest.approx([math.exp(-0.3), math.exp(-2.0)])
    assert loaded.signals["min_logprob"].tolist() == [-0.5, -2.0]
    assert loaded.signals["tokens"].tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([inspect_sample(1, "P", confidence=0.5)], "correct: expected true/false, 1/0 or yes/no, got 'P' in"),
        ([inspect_sample(1, "C")], "confidence: expected a confidence in every row, got none in sample 0"),
        ([inspect_sample(1, None, confidence=0.5)], "correct: expected a value in every row, got none in"),
        ([], "expected at least one sample, got none"),
        (None, "expected a log of Inspect with the keys eval and samples, got another JSON file"),
    ],
)
def test_inspect_logs_that_cannot_be_read_get_a_sentence(tmp_path, samples, sentence):
    assert refusal(inspect_log(tmp_path / "log.json", samples)).startswith(sentence)


def test_boxes_of_a_detector_are_told_from_a_log(tmp_path):
    path = tmp_path / "detections.json"
    path.write_text(json.dumps([{"image_id": 1, "bbox": [0, 0, 1, 1], "score": 0.5}]), encoding="utf-8")
    assert refusal(path).endswith("whose ground truth is needed too; name its file with --ground-truth")


def test_inspect_scorers_are_chosen_by_name(tmp_path):
    sample = inspect_sample(1, "C", confidence=0.5)
    sample["scores"]["judge"] = {"value": "I"}
    path = inspect_log(tmp_path / "log.json", [sample])
    assert refusal(path).startswith(
        "scores: expected one scorer, got match, judge in sample 0; name one, as in correct='scores.match."
    )
    loaded = load_predictions(path, columns=Columns(correct="scores.judge.value"))
    assert loaded.correct.tolist() == [False]


def inspect_archive(path, samples, *, packed=ZIP_DEFLATED, header="header.json"):
    """Write a log as Inspect does: a file for each sample, in the order in which they ended."""
    with ZipFile(path, "w", packed) as archive:
        for sample in reversed(samples):
            name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
            archive.writestr(name, json.dumps(sample))
        archive.writestr("summaries.json", "[]")
        archive.writestr(header, json.dumps({"version": 2, "status": "success", "eval": {"task": "t"}}))
    return path


def with_zstandard(path):
    """Pack a file of stored entries again by Zstandard, which Python's own module learned in 3.14."""
    with ZipFile(path) as archive:
        entries = [(each.filename, archive.read(each)) for each in archive.infolist()]
    body, directory = b"", b""
    for name, content in entries:
        data, title = pa.compress(content, codec="zstd", asbytes=True), name.encode()
        extra = struct.pack("<HHI", 0xCAFE, 4, 1)
        fields = (93, 0, 0, crc32(content), len(data), len(content), len(title))
        local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 63, 0, *fields, len(extra)) + title + extra
        directory += struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 63, 63, 0, *fields, 0, 0, 0, 0, 0, len(body)
        )
        directory += title
        body += local + data
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(entries), len(entries), len(directory), len(body), 0)
    path.write_bytes(body + directory + end)
    return path


@pytest.mark.parametrize("packing", ["stored", "deflated", "zstandard"])
def test_an_inspect_archive_is_read_as_the_log_in_json(tmp_path, packing):
    samples = [inspect_sample(n, "C" if n % 3 else "I", confidence=n / 12) for n in range(1, 12)]
    path = tmp_path / "log.eval"
    inspect_archive(path, samples, packed=ZIP_DEFLATED if packing == "deflated" else ZIP_STORED)
    if packing == "zstandard":
        with_zstandard(path)
    in_json = load_predictions(inspect_log(tmp_path / "log.json", samples))
    loaded = load_predictions(path)
    assert loaded.confidence.tolist() == in_json.confidence.tolist()
    assert loaded.correct.tolist() == in_json.correct.tolist()


def test_inspect_archives_that_cannot_be_read_get_a_sentence(tmp_path):
    path = inspect_archive(tmp_path / "log.eval", [inspect_sample(1, "C")], header="_journal/start.json")
    assert "expected a finished log of Inspect with header.json, got an archive without it" in refusal(path)
    assert refusal(inspect_archive(path, [])).startswith("expected at least one sample, got none")
    path.write_bytes(b"no archive at all")
    assert "got a file that cannot be read as such" in refusal(path)


def chat(*log_probs):
    content = [{"token": "x", "logprob": p, "bytes": None, "top_logprobs": []} for p in log_probs]
    logprobs = {"content": content, "refusal": None} if log_probs else None
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "logprobs": logprobs}],
    }


def test_openai_responses_alone_in_a_batch_or_within_a_record(tmp_path):
    completion = {"object": "text_completion", "choices": [{"logprobs": {"token_logprobs": [None, -0.7]}}]}
    rows = [
        {**chat(-0.1, -0.5), "right": True, "topic": "law"},
        {
            "custom_id": "a",
            "response": {"status_code": 200, "body": chat(-2.0)},
            "right": "no",
            "topic": "art",
        },
        {"response": completion, "right": 0, "topic": "art"},
    ]
    path = write(tmp_path / "answers.jsonl", rows)
    loaded = load_predictions(path, columns=Columns(correct="right", groups="topic"))
    assert loaded.confidence.tolist() == pytest.approx([math.exp(-0.3), math.exp(-2.0), math.exp(-0.7)])
    assert loaded.correct.tolist() == [True, False, False]
    assert loaded.signals["min_logprob"].tolist() == [-0.5, -2.0, -0.7]
    assert loaded.signals["tokens"].tolist() == [2.0, 1.0, 1.0]
    assert loaded.groups.values == ["law", "art", "art"]
    assert load_predictions(path, need_labels=False).correct is None


def test_openai_requests_that_failed_can_be_dropped(tmp_path):
    failed = {"custom_id": "b", "response": None, "error": {"code": "x"}, "correct": False}
    path = write(tmp_path / "answers.jsonl", [{**chat(-0.1), "correct": True}, failed])
    assert refusal(path).startswith("confidence: expected a confidence in every row, got none in line 2;")
    loaded = load_predictions(path, columns=Columns(missing="drop"))
    assert (loaded.n, loaded.metadata["dropped"]) == (1, "1")


def test_a_named_confidence_goes_before_the_layout(tmp_path):
    path = write(tmp_path / "answers.jsonl", [{**chat(-0.1), "said": 0.6, "correct": True}])
    assert load_predictions(path, columns=Columns(confidence="said")).confidence.tolist() == [0.6]
    assert load_predictions(path, columns=Columns(layout="openai")).confidence[0] == pytest.approx(
        math.exp(-0.1)
    )


def test_a_layout_needs_its_format(tmp_path):
    (tmp_path / "a.csv").write_text("confidence,correct\n0.5,1\n")
    assert "expected a .jsonl or .json file of openai" in refusal(
        tmp_path / "a.csv", Columns(layout="openai")
    )
    path = write(tmp_path / "a.jsonl", [{"confidence": 0.5, "correct": 1}])
    assert "expected a .json or .eval file of inspect, got .jsonl" in refusal(path, Columns(layout="inspect"))
    assert "expected a log-likelihood for each" in refusal(path, Columns(layout="lm-eval"))
    assert "got none in line 1" in refusal(path, Columns(layout="openai"))
