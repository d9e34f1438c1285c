"""Fuzzers of readers: the bytes of a valid file are changed at random, and so are values in a JSON file.

A damaged file is refused, or reads as before. Where the format has no checksum, it may say something else.
"""

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from calibrant.boxes import match_pairs, read_detections, read_ground_truth
from calibrant.data import Predictions, load_predictions, save_predictions
from calibrant.data.columns import read_words
from calibrant.data.files import FORMATS
from calibrant.evaluation import compare
from calibrant.evaluation.choose import make_choice
from calibrant.monitoring import Monitoring
from calibrant.monitoring.state import state_text
from calibrant.papers.arena_page import arena_page
from calibrant.papers.arena_tasks import merge_tasks, read_arena_tasks
from calibrant.papers.rows import (
    Record,
    Row,
    RowFile,
    files_left_out,
    finished_rows,
    flat,
    read_rows,
    save_left_out,
    saved_experiment,
)
from calibrant.posthoc import load_calibrator
from calibrant.posthoc.names import method_named
from calibrant.report.describe import describe_comparison
from calibrant.report.sources import Sources
from calibrant.report.write import load_page, render, save_results
from calibrant.streams import open_stream
from tests.conftest import draw, softmax
from tests.fuzz.fuzzer import Fuzzer, Verdict, bounded_memory, expect, judged
from tests.fuzz.mutations import CHANGES, PATHS, VALUES, changed_bytes, changed_value
from tests.papers.arena_rows import drawn_rows, folder_of
from tests.papers.small import TEXT


@dataclass(frozen=True)
class Document:
    """A valid file, and how it is read.

    Attributes:
        kind: What it is, as the results name it.
        make: Writes the file, and those that belong to it, into a folder and returns its path.
        read: Reads it and uses what it says; returns all of that.
        checksum: Whether a change of what the file says must be noticed.
        text: Writes the values of a JSON file; None if only its bytes are changed.
        share: As in :class:`~tests.fuzz.fuzzer.Fuzzer`.
    """

    kind: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    checksum: bool = False
    text: Callable[[Any], str] | None = None
    share: float = 1.0

    @functools.cached_property
    def path(self) -> Path:
        """Where the valid file is; made when it is first needed."""
        folder = tempfile.mkdtemp(prefix="calibrant-fuzz-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return self.make(Path(folder))

    @functools.cached_property
    def content(self) -> bytes:
        """The valid file."""
        return self.path.read_bytes()

    @functools.cached_property
    def meaning(self) -> str:
        """All that the valid file says."""
        self.read(self.path)  # what is imported late is not counted as memory
        return plain(self.read(self.path))

    def judge(self, content: bytes, *, checksum: bool) -> Verdict:
        """Return the verdict on the file with another content."""
        meaning, original = self.meaning, self.content

        def load() -> Any:
            with bounded_memory(len(content)):
                return self.read(self.path)

        def compare_with_original(found: Any) -> Verdict | None:
            if plain(found) == meaning:
                return "right"
            expect(not checksum, f"a changed file was believed: {plain(found)[:300]}")
            return "other"

        self.path.write_bytes(content)
        try:
            return judged(load, compare_with_original)
        finally:
            self.path.write_bytes(original)


def plain(value: Any) -> str:
    """Return all numbers and texts of a value, so that equal texts mean equal values, also with NaN."""
    if isinstance(value, Tensor):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    if is_dataclass(value) and not isinstance(value, type):
        return plain({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {plain(entry)}" for key, entry in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(plain, value)) + "]"
    return repr(value)


# Valid files


def class_predictions(n: int = 24) -> Predictions:
    """Predictions with all that a file can hold beside classes."""
    logits, labels = draw(n, 3)
    return Predictions(
        logits=logits.astype(np.float32),
        labels=labels,
        weights=np.linspace(0.5, 2, n),
        features=np.outer(labels, [1.0, -2.0]).astype(np.float32),
        groups=["law" if each else "art" for each in labels],
        class_names=["cat", "dog", "fox"],
        metadata={"model": "small"},
    )


def pair_predictions(n: int = 24) -> Predictions:
    """Confidences of a black box."""
    logits, labels = draw(n, 3, seed=1)
    probs = softmax(logits)
    return Predictions(
        confidence=probs.max(axis=1), correct=probs.argmax(axis=1) == labels, signals={"length": labels + 1.0}
    )


def _saved(predictions: Predictions, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        save_predictions(predictions, folder / name)
        return folder / name

    return make


def _lm_eval(folder: Path) -> Path:
    rows = [
        {
            "doc_id": number,
            "doc": {"question": "?"},
            "target": str(number % 2),
            "arguments": {f"gen_args_{i}": {"arg_0": "?", "arg_1": f" {i}"} for i in range(2)},
            "resps": [[["-1.0", "False"]], [["-2.5", "False"]]],
            "filtered_resps": [["-1.0", "False"], ["-2.5", "False"]],
            "filter": "none",
            "acc": 1.0 - number % 2,
        }
        for number in range(6)
    ]
    path = folder / "samples_task.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def _inspect(folder: Path) -> Path:
    path = folder / "log.eval"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for number in range(6):
            scores = {"match": {"value": "CI"[number % 2], "metadata": {"confidence": 0.5 + number / 20}}}
            sample = {"id": number, "epoch": 1, "output": {"choices": []}, "scores": scores}
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample))
        archive.writestr("header.json", json.dumps({"version": 2, "eval": {"task": "t"}}))
    return path


def _words(folder: Path) -> Path:
    path = folder / "words.json"
    path.write_text(json.dumps({"certain": 0.99, "likely": 0.8, "unsure": 0.3}), encoding="utf-8")
    return path


def _calibrator(method: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        method_named(method).fit(*draw(300, 3, sharpen=2.0)).save(folder / "c.safetensors")
        return folder / "c.safetensors"

    return make


def _read_calibrator(path: Path) -> Any:
    calibrator = load_calibrator(path)
    rows = torch.tensor(draw(5, 3, seed=3)[0])
    return dict(calibrator.state_dict()), calibrator.predict_proba(rows)


def _reference() -> Predictions:
    logits, labels = draw(600, 3, seed=5)
    return Predictions(logits=logits, labels=labels)


def _state(*, alarm: bool) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        monitoring = Monitoring(_reference(), window=100)
        logits, labels = draw(1250, 3, seed=6, sharpen=4.0 if alarm else 1.0)
        monitoring.update(Predictions(logits=logits, labels=labels))
        monitoring.save(folder / "state.json")
        return folder / "state.json"

    return make


def _read_state(path: Path) -> Any:
    """Load a state and go on with it."""
    monitoring = Monitoring.load(path, _reference())
    logits, labels = draw(130, 3, seed=7)
    windows = monitoring.update(Predictions(logits=logits, labels=labels))
    monitoring.event(time="now", file="x")
    return windows, monitoring.conclusion(), monitoring.monitor.state()


def _grouped(n: int, seed: int) -> Predictions:
    logits, labels = draw(n, 3, seed=seed)
    return Predictions(logits=logits, labels=labels, groups=np.arange(n) % 2, ids=np.arange(n) + 1000 * seed)


def _state_of_groups(folder: Path) -> Path:
    """Save a state with tests of groups, and rows that wait for their labels."""
    monitoring = Monitoring(_grouped(600, 5), window=100, by="half")
    rows = _grouped(250, 6)
    monitoring.wait_for_labels(rows)
    for some in (rows.take(np.arange(200)), rows.take(np.arange(200, 250)).replaced(labels=None)):
        monitoring.update(some)
    monitoring.save(folder / "state.json")
    return folder / "state.json"


def _read_state_of_groups(path: Path) -> Any:
    monitoring = Monitoring.load(path, _grouped(600, 5))
    windows = monitoring.update(_grouped(130, 7))
    monitoring.event(time="now", file="x")
    return windows, monitoring.conclusion(), monitoring.monitor.state()


def _redigested(state: Any) -> str:
    """Return a state with a digest of its own, as one who means harm would write it."""
    try:
        return state_text({key: value for key, value in state.items() if key != "digest"})
    except ValueError:  # NaN and infinity are no JSON
        return json.dumps(state)


def _results(folder: Path) -> Path:
    """Write what ``calibrate --out`` writes."""
    predictions = class_predictions(60)
    comparison = compare(predictions, methods=["uncalibrated", "temperature"])
    choice = make_choice(comparison)
    page = describe_comparison(comparison, choice, Sources("p.npz", validation=predictions))
    save_results(folder, choice.result.calibrator, {"chosen": choice.result.name}, page)
    return folder / "results.json"


def _read_results(path: Path) -> Any:
    page = load_page(path.parent)
    render(page)
    return page


def _bench_rows(folder: Path) -> Path:
    file = RowFile(folder)
    for number in range(3):
        record = Record({"method": "temperature", "set": "test"}, {"nll": 0.5 + number, "ece": None})
        file.add(Row("small", "quick", {"source": "digits"}, number, (record,), 0.1, {"torch": "2"}, "ab"))
    return file.path


def _arena_row(folder: Path) -> Path:
    return folder_of(folder, drawn_rows(1)) / "rows.jsonl"


def _read_arena(path: Path) -> Any:
    """Write the page of these rows and of others, as ``bench page --add`` does."""
    sources = {"mine": drawn_rows(2), "theirs": read_rows(path)}
    merged = merge_tasks({name: read_arena_tasks(rows, source=name) for name, rows in sources.items()})
    return arena_page(merged, sources=list(sources))


def _experiment(folder: Path) -> Path:
    (folder / "small.toml").write_text(TEXT, encoding="utf-8")
    return folder / "small.toml"


def _left_out(folder: Path) -> Path:
    save_left_out({"a.npz": "no labels", "b.npz": "empty"}, folder)
    return next(folder.iterdir())


@functools.cache
def _run_folder() -> Path:
    """Train for two epochs, once for all documents of a run."""
    from calibrant.training import train
    from tests.training.small import small_config

    folder = Path(tempfile.mkdtemp(prefix="calibrant-fuzz-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train(small_config("training.epochs=2", "training.keep=nll", "posthoc.methods=[]"), folder)
    return folder


def _of_run(name: str) -> Callable[[Path], Path]:
    return lambda _: _run_folder() / name


def _read_network(path: Path) -> Any:
    from calibrant.training import load_network

    return load_network(path.parent)(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))


def _read_checkpoint(path: Path) -> Any:
    from calibrant.training.checkpoint import read_checkpoint

    return read_checkpoint(path.parent)


def _read_run_config(path: Path) -> Any:
    from calibrant.training.folder import load_folder_config

    return load_folder_config(path.parent)


def _read_run_rows(path: Path) -> Any:
    from calibrant.training import load_rows

    return load_rows(path.parent)


def _boxes(name: str, content: str) -> Callable[[Path], Path]:
    """Write one of the files of a detector: results, ground truth, or the boxes of an image."""

    def make(folder: Path) -> Path:
        truth = {
            "images": [{"id": 1, "width": 60, "height": 40}],
            "categories": [{"id": 1, "name": "car"}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [5, 5, 20, 20], "area": 400}],
        }
        found = [{"image_id": 1, "category_id": 1, "bbox": [6, 5, 20, 20], "score": 0.9}]
        (folder / "truth.json").write_text(json.dumps(truth))
        (folder / "found.json").write_text(json.dumps(found))
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if content:
            path.write_text(content)
        return path

    return make


def _read_boxes(path: Path) -> Any:
    if path.suffix != ".json":
        truth = read_ground_truth(path.parent, class_names=["car"])
        return truth.images, truth.boxes.tolist(), truth.label.tolist()
    truth = read_ground_truth(path.parent / "truth.json")
    pairs = match_pairs(read_detections(path.parent / "found.json", truth))
    return pairs.score.tolist(), pairs.correct.tolist(), pairs.missed


_VOC = (
    "<annotation><size><width>60</width><height>40</height></size><object><name>car</name><bndbox>"
    "<xmin>5</xmin><ymin>5</ymin><xmax>25</xmax><ymax>25</ymax></bndbox></object></annotation>"
)


def _stream(path: Path) -> Any:
    return [batch.predictions for batch in open_stream(path).batches(7)]


# Formats in which a changed number is noticed; in the others every number is a valid one.
_CHECKSUMS = {".npz", ".parquet", ".safetensors"}

DOCUMENTS = (
    *(
        Document(
            f"predictions, {suffix[1:]}", _saved(made, f"p{suffix}"), load_predictions, suffix in _CHECKSUMS
        )
        for suffix in FORMATS
        for made in (class_predictions(), pair_predictions())
    ),
    Document("stream of predictions, parquet", _saved(class_predictions(), "p.parquet"), _stream, True),
    Document("log of lm-evaluation-harness, jsonl", _lm_eval, load_predictions),
    Document("log of Inspect, eval", _inspect, load_predictions),
    Document("words of confidence, JSON", _words, read_words, text=json.dumps),
    *(
        Document(f"calibrator, {method}", _calibrator(method), _read_calibrator, checksum=True)
        for method in ("temperature", "structured_smart", "isotonic")
    ),
    Document("state of a monitor", _state(alarm=False), _read_state, True, _redigested),
    Document("state of a monitor with an alarm", _state(alarm=True), _read_state, True, _redigested),
    Document(
        "state of a monitor of groups", _state_of_groups, _read_state_of_groups, True, _redigested, share=0.5
    ),
    Document("results of a detector, JSON", _boxes("found.json", ""), _read_boxes, text=json.dumps),
    Document("ground truth of a detector, JSON", _boxes("truth.json", ""), _read_boxes, text=json.dumps),
    Document("boxes of YOLO", _boxes("labels/a.txt", "0 0.3 0.4 0.2 0.3\n"), _read_boxes),
    Document("boxes of Pascal VOC", _boxes("labels/a.xml", _VOC), _read_boxes),
    Document("results.json of calibrate", _results, _read_results, text=json.dumps, share=0.05),
    Document("rows of a benchmark", _bench_rows, lambda path: flat(finished_rows(path.parent))),
    Document(
        "row of the arena, JSON", _arena_row, _read_arena, text=lambda row: f"{json.dumps(row)}\n", share=0.5
    ),
    Document("experiment of a benchmark, TOML", _experiment, lambda path: saved_experiment(path.parent)),
    Document(
        "files left out by a benchmark", _left_out, lambda path: files_left_out(path.parent), text=json.dumps
    ),
    Document("run folder, checkpoint.json", _of_run("checkpoint.json"), _read_checkpoint, text=json.dumps),
    Document("run folder, network.json", _of_run("network.json"), _read_network, text=json.dumps),
    Document("run folder, weights", _of_run("model.safetensors"), _read_network),
    Document("run folder, config.toml", _of_run("config.toml"), _read_run_config),
    Document("run folder, measures of epochs", _of_run("metrics.jsonl"), _read_run_rows),
)


def _byte_fuzzer(kind: str, documents: Iterable[Document]) -> Fuzzer:
    known = tuple(documents)

    def judge(case: tuple[int, list[tuple[str, int, Any]]]) -> Verdict:
        document = known[case[0]]
        return document.judge(changed_bytes(document.content, case[1]), checksum=document.checksum)

    cases = st.tuples(st.integers(0, len(known) - 1), CHANGES)
    return Fuzzer("changed bytes of", kind, cases, judge, share=max(each.share for each in known))


def _value_fuzzer(document: Document) -> Fuzzer:
    def judge(case: tuple[list[int], Any, bool]) -> Verdict:
        path, value, remove = case
        text = document.text(changed_value(json.loads(document.content), path, value, remove=remove))
        return document.judge(text.encode("utf-8", "surrogatepass"), checksum=False)

    cases = st.tuples(PATHS, VALUES, st.booleans())
    return Fuzzer("changed values of", document.kind, cases, judge, share=document.share)


_KINDS = dict.fromkeys(each.kind for each in DOCUMENTS)
FUZZERS = (
    *(_byte_fuzzer(kind, (each for each in DOCUMENTS if each.kind == kind)) for kind in _KINDS),
    *(_value_fuzzer(each) for each in DOCUMENTS if each.text is not None),
)
