"""Logs of other tools: samples of lm-evaluation-harness, Inspect logs, and records of OpenAI's API."""

import json
import os
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile, ZipInfo

import numpy as np

from calibrant.data.columns import Columns, FileRows, Layout
from calibrant.data.json_lines import JsonLines, value_at
from calibrant.errors import FormatError, InputError
from calibrant.extras import optional
from calibrant.files import parse_json
from calibrant.signals import token_confidence

# Names of the columns that are made here.
_CONFIDENCE, _LOWEST, _TOKENS = "confidence", "min_logprob", "tokens"
_OPTIONS, _ANSWER, _CORRECT, _GROUP = "options", "answer", "correct", "group"

# Where a record holds the response of the API, from the inside out: itself, a batch, a wrapper.
_RESPONSES = ("", "response.body", "response", "completion")
_HEADER, _ZSTANDARD = "header.json", 93
# Inspect's marks: correct, incorrect, no answer. Partial credit, P, is neither right nor wrong.
_MARKS = {"C": True, "I": False, "N": False}


class InspectLog(JsonLines):
    """The samples of a log of Inspect in its JSON format."""

    unit = "sample"

    @cached_property
    def log(self) -> dict[str, Any]:
        """The whole log."""
        log = parse_json(self.path.read_text(encoding="utf-8-sig"))
        if isinstance(log, list) and log and isinstance(log[0], dict) and "bbox" in log[0]:
            raise FormatError(
                "expected predictions, got boxes of a detector, whose ground truth is needed too; name its "
                "file with --ground-truth"
            )
        if not isinstance(log, dict) or not isinstance(log.get("samples"), list) or "eval" not in log:
            raise FormatError(
                "expected a log of Inspect with the keys eval and samples, got another JSON file; write "
                "other answers as .jsonl, one object per line"
            )
        if not log["samples"]:
            raise FormatError("expected at least one sample, got none; the evaluation may have failed")
        return log

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The samples, in the order of the log."""
        return [sample if isinstance(sample, dict) else {} for sample in self.log["samples"]]

    @cached_property
    def numbers(self) -> list[int]:
        """The number of each sample, counted from zero."""
        return list(range(len(self.records)))


class InspectArchive(InspectLog):
    """The samples of a log of Inspect in its own format, ``.eval``: a zip archive of JSON files."""

    @cached_property
    def log(self) -> dict[str, Any]:
        """The whole log, its samples in the order in which Inspect shows them."""
        with BytesIO(self.path.read_bytes()) as file, ZipFile(file) as archive:
            if _HEADER not in archive.namelist():
                raise FormatError(
                    f"expected a finished log of Inspect with {_HEADER}, got an archive without it; if the "
                    "run was cut off, 'inspect log recover' may finish it"
                )
            files = [each for each in archive.infolist() if each.filename.startswith("samples/")]
            samples = [json.loads(_unpacked(file, archive, each)) for each in files]
        if not samples:
            raise FormatError("expected at least one sample, got none; the evaluation may have failed")
        return {"samples": sorted(samples, key=_place_in_log)}


def _place_in_log(sample: Mapping[str, Any]) -> tuple[int, bool, Any]:
    name = sample.get("id")
    return int(sample.get("epoch", 1)), isinstance(name, str), name


def _unpacked(file: IO[bytes], archive: ZipFile, entry: ZipInfo) -> bytes:
    """Return the content of a file in an archive; newer logs are packed by Zstandard, new to Python 3.14."""
    if entry.compress_type != _ZSTANDARD or sys.version_info >= (3, 14):
        return archive.read(entry)
    with optional("logs of Inspect that are packed by Zstandard"):
        import pyarrow as pa
    # The local header repeats the name and may have fields of its own.
    file.seek(entry.header_offset + 26)
    name, fields = struct.unpack("<HH", file.read(4))
    file.seek(name + fields, os.SEEK_CUR)
    packed = file.read(entry.compress_size)
    return bytes(pa.decompress(packed, entry.file_size, codec="zstd"))


def read_log(source: JsonLines, columns: Columns) -> tuple[FileRows, Columns] | None:
    """Return the answers in a log, and what their columns mean; none if the file is no log.

    Args:
        source: A file of JSON Lines, or a log of Inspect.
        columns: What the caller gave; without a layout, it is recognised from the first record, unless a
            column is named that holds the confidence or class scores.
    """
    layout = columns.layout or _recognised(source, columns)
    if layout is None:
        return None
    rows, meant = _LAYOUTS[layout](source, columns)
    if columns.weights is not None:
        own = source.read_columns([columns.weights]).columns
        rows = replace(rows, columns={**rows.columns, **own})
    return rows, meant


def _recognised(source: JsonLines, columns: Columns) -> Layout | None:
    if isinstance(source, InspectLog):
        return "inspect"
    first = source.records[0]
    if columns.confidence or columns.options or columns.logits or columns.probs or _CONFIDENCE in first:
        return None
    if {"doc_id", "resps", "filtered_resps", "target"} <= first.keys():
        return "lm-eval"
    return "openai" if _response(first) is not None else None


def _lm_eval(source: JsonLines, columns: Columns) -> tuple[FileRows, Columns]:
    """Read the log-likelihoods of the options, the target and the subject or the task.

    A file repeats every question for each filter of the task; the first filter is read.
    """
    first = source.records[0].get("filter")
    used = [row for row, record in enumerate(source.records) if record.get("filter") == first]
    records, numbers = [source.records[row] for row in used], [source.numbers[row] for row in used]
    options, answers = [], []
    for record, number in zip(records, numbers, strict=True):
        options.append(_log_likelihoods(record, number))
        answers.append(_target(record, len(options[-1])))
    made: dict[str, list[Any]] = {_OPTIONS: options}
    if all(answer is not None for answer in answers):
        made[_ANSWER] = answers
    elif all("acc" in record for record in records):
        made[_CORRECT] = [record["acc"] for record in records]
    made[_GROUP] = [value_at(record, _one_group(columns) or "doc.subject") for record in records]
    if columns.groups is None and None in made[_GROUP]:
        made[_GROUP] = [_task(source.path)] * len(records)
    meant = replace(columns, confidence=(), options=_OPTIONS, answer=_ANSWER, correct=_CORRECT, groups=_GROUP)
    return FileRows(made, source.unit, numbers), meant


def _log_likelihoods(record: Mapping[str, Any], line: int) -> list[float]:
    """Return one log-likelihood per option; each stands in a list with whether it was the greedy choice."""
    responses = record.get("filtered_resps") or record.get("resps") or []
    scores = [_first_number(each) for each in responses]
    if "acc_mutual_info" in record:  # the second half are the same options without the question
        scores = scores[: len(scores) // 2]
    if len(scores) < 2 or None in scores:
        raise InputError(
            "filtered_resps: expected a log-likelihood for each of several options, got "
            f"{json.dumps(responses)[:60]} in line {line}; only samples of multiple-choice tasks have them"
        )
    return [score for score in scores if score is not None]


def _first_number(value: Any) -> float | None:  # noqa: ANN401  # any JSON value
    while isinstance(value, list) and value:
        value = value[0]
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _target(record: Mapping[str, Any], k: int) -> int | None:
    """Return the place of the right option from its number, its text or its letter; none if unclear."""
    target = str(record.get("target", "")).strip()
    if target.isdigit():
        return int(target) if int(target) < k else None
    arguments = record.get("arguments") or []
    pairs = [list(each.values()) for each in arguments.values()] if isinstance(arguments, dict) else arguments
    texts = [str(pair[1]).strip() for pair in pairs[:k] if isinstance(pair, list) and len(pair) > 1]
    if target in texts and texts.count(target) == 1:
        return texts.index(target)
    place = ord(target) - ord("A") if len(target) == 1 else -1
    return place if 0 <= place < k else None


def _task(path: Path) -> str:
    """Return the task in the name of a file such as ``samples_arc_easy_2025-01-31T12-00-00.jsonl``."""
    stem = path.stem.removeprefix("samples_")
    return re.sub(r"_\d{4}-\d{2}-\d{2}T[\d.:-]+$", "", stem)


def _inspect(source: JsonLines, columns: Columns) -> tuple[FileRows, Columns]:
    """Read the score of each sample and its confidence: from its metadata, else from its tokens."""
    if not isinstance(source, InspectLog):
        raise InputError("layout: expected a .json or .eval file of inspect, got .jsonl; leave out layout=")
    samples = source.records
    if columns.correct == "correct":
        values = [_score(sample, row).get("value") for row, sample in enumerate(samples)]
    else:
        values = list(source.read_columns([columns.correct]).columns[columns.correct])
    made: dict[str, Any] = {_CORRECT: [_MARKS.get(v, v) if isinstance(v, str) else v for v in values]}
    names = columns.confidence
    if names:
        made |= source.read_columns(columns.names).columns
    elif any(_stated(sample) is not None for sample in samples):
        made[_CONFIDENCE] = [_stated(sample) for sample in samples]
    else:
        made |= _of_tokens([value_at(sample, "output") for sample in samples])
        names = (_CONFIDENCE, _LOWEST, _TOKENS)
    return _with_groups(made, source, replace(columns, confidence=names, correct=_CORRECT))


def _score(sample: Mapping[str, Any], row: int) -> Mapping[str, Any]:
    """Return the score of a sample; of several scorers a person must name one."""
    scores = sample.get("scores") or {}
    if len(scores) > 1:
        raise InputError(
            f"scores: expected one scorer, got {', '.join(scores)} in sample {row}; name one, as in "
            f"correct='scores.{next(iter(scores))}.value'"
        )
    score: Any = next(iter(scores.values()), {})
    return score if isinstance(score, Mapping) else {"value": score}


def _stated(sample: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON value
    """Return the confidence in the metadata of the scores or of the sample; none if there is none."""
    places = [f"scores.{name}.metadata.confidence" for name in sample.get("scores") or {}]
    found = (value_at(sample, place) for place in (*places, "metadata.confidence"))
    return next((value for value in found if value is not None), None)


def _openai(source: JsonLines, columns: Columns) -> tuple[FileRows, Columns]:
    """Read the log-probabilities of the tokens of each response, and whether it was right, if given."""
    made: dict[str, Any] = _of_tokens([_response(record) for record in source.records])
    made |= source.read_columns([], [columns.correct]).columns
    return _with_groups(made, source, replace(columns, confidence=(_CONFIDENCE, _LOWEST, _TOKENS)))


def _response(record: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON value
    """Return the response of the API within a record; none if there is none."""
    for place in _RESPONSES:
        found = value_at(record, place) if place else record
        choices = value_at(found, "choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            return found
    return None


def _of_tokens(responses: Sequence[Any]) -> dict[str, Any]:
    """Return the confidence of each response, its least likely token, and how many tokens it has."""
    tokens = [_token_log_probs(response) for response in responses]
    # Responses without tokens take part, so that every response keeps its row.
    confidence = np.asarray(token_confidence([each or [0.0] for each in tokens]))
    return {
        _CONFIDENCE: np.where([bool(each) for each in tokens], confidence, np.nan),
        _LOWEST: np.array([min(each, default=np.nan) for each in tokens]),
        _TOKENS: np.array([len(each) or np.nan for each in tokens]),
    }


def _token_log_probs(response: Any) -> list[float]:  # noqa: ANN401  # any JSON value
    """Return the log-probability of each token of the first choice: of a chat, or of a completion."""
    choices = value_at(response, "choices")
    found = value_at(choices[0], "logprobs") if isinstance(choices, list) and choices else None
    content, listed = value_at(found, "content"), value_at(found, "token_logprobs")
    numbers = [value_at(token, "logprob") for token in content] if content else listed or []
    return [float(each) for each in numbers if each is not None]


def _one_group(columns: Columns) -> str:
    """Return the column of groups, empty if there is none; refuse several."""
    if len(columns.group_columns) > 1:
        raise InputError(
            f"groups: expected one column for the log of another tool, got {columns.by}; join them into one"
        )
    return columns.by or ""


def _with_groups(made: dict[str, Any], source: JsonLines, columns: Columns) -> tuple[FileRows, Columns]:
    if columns.groups is not None:
        name = _one_group(columns)
        made[_GROUP] = source.read_columns([name]).columns[name]
        columns = replace(columns, groups=_GROUP)
    return FileRows(made, source.unit, source.numbers), columns


_LAYOUTS: Mapping[Layout, Callable[[JsonLines, Columns], tuple[FileRows, Columns]]] = {
    "lm-eval": _lm_eval,
    "inspect": _inspect,
    "openai": _openai,
}
