"""Every example runs in small, trains, and prints a table of what it returns."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions, compare, load_predictions
from calibrant.data import Columns
from calibrant.integrations.onnx_join import join_onnx
from tests.conftest import draw

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = [
    # Lightning looks at batches in a way that this version of torch will give up.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated"),
    # The examples keep to one process.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.slow,
]


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The package that an example needs, and settings that make it small.
SMALL = {
    "plain_loop": ("sklearn", {"epochs": 4}),
    "lightning_callback": ("lightning", {"epochs": 2}),
    "transformers_trainer": ("transformers", {"epochs": 3, "n_train": 200}),
}


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_in_small_and_prints_what_it_returns(name, tmp_path, monkeypatch, capsys):
    package, options = SMALL[name]
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    rows = example(name).main(**options)
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [line[0] for line in table] == ["loss", "cross_entropy", "adafocal"]
    heads = table[0][1:]
    assert any(head.endswith("ece") for head in heads)
    for line in table[1:]:
        assert [float(cell) for cell in line[1:]] == pytest.approx(
            [rows[line[0]][h] for h in heads], abs=5e-3
        )
    ece = next(head for head in heads if head.endswith("ece"))
    assert rows["cross_entropy"][ece] != rows["adafocal"][ece]
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_the_plain_loop_goes_on_from_its_checkpoint():
    rows = example("plain_loop").main(epochs=4)
    assert rows["adafocal"]["updates"] == 4
    assert rows["cross_entropy"]["updates"] == 0


@pytest.fixture
def ray_train(tmp_path):
    """Run the example of Ray Train as a command with two workers, and return its table."""
    pytest.importorskip("ray")
    mark = uuid.uuid4().hex

    def run():
        # Ray gives its own processes 30 s to start, which on a busy machine may take a second try.
        for _ in range(2):
            # Its sockets need a short path.
            with tempfile.TemporaryDirectory(prefix="ray") as folder:
                environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RAY_TMPDIR": folder}
                result = subprocess.run(
                    [sys.executable, EXAMPLES / "ray_train.py", "--quick", "--workers", "2"],
                    cwd=tmp_path,
                    env={**os.environ, **environment, "CALIBRANT_TEST": mark},
                    capture_output=True,
                    text=True,
                    timeout=400,
                )
            if result.returncode == 0:
                break
        assert result.returncode == 0, result.stderr
        names, values = (line.split() for line in result.stdout.replace(" gamma", "_gamma").splitlines())
        return dict(zip(names, map(float, values), strict=True))

    yield run
    left = _marked(mark)
    for _ in range(100):
        if not left:
            break
        time.sleep(0.1)
        left = _marked(mark)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert left == []
    assert list(tmp_path.iterdir()) == []


def _marked(mark):
    """Numbers of the processes that have a word in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_text(errors="replace"):
                found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def one_process():
    """What the example of Ray Train learns without Ray."""
    return example("ray_train").main(epochs=4, workers=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own
def test_the_example_of_ray_train_learns_in_one_process(one_process):
    assert one_process["updates"] == 4
    assert one_process["least gamma"] < one_process["most gamma"]  # all began with the same
    assert one_process["accuracy"] > 0.8


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own
def test_two_workers_of_ray_learn_what_one_process_learns_and_leave_nothing_behind(ray_train, one_process):
    expected = {name.replace(" ", "_"): value for name, value in one_process.items()}
    assert ray_train() == pytest.approx(expected, abs=2e-3)


def test_every_example_is_tested():
    elsewhere = {"dask_measures": "streams/test_dask.py", "huggingface/ece/ece": "integrations/test_hub.py"}
    for name, test in elsewhere.items():
        assert (EXAMPLES / f"{name}.py").is_file()
        assert name.partition("/")[0] in (EXAMPLES.parent / "tests" / test).read_text(encoding="utf-8")
    here = {*SMALL, "collect_answers", "ray_train", "serve"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*here, *(set(elsewhere) & {"dask_measures"})}


class _Model(BaseHTTPRequestHandler):
    """A language model that knows Paris, is unsure of Lyon, and forgets to state a number once."""

    asked = 0

    def do_POST(self):
        _Model.asked += 1
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        stated = "" if _Model.asked == 2 else "\nConfidence: 90 %"
        text = f"I think.\nAnswer: {'Paris' if 'France' in prompt else 'lyon'}.{stated}"
        body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_answers_are_collected_once_and_read_by_question(tmp_path):
    questions, out = tmp_path / "questions.csv", tmp_path / "answers.jsonl"
    questions.write_text(
        "question_id,question,answer,subject\nq1,Capital of France?,Paris,cities\nq2,Where?,Nice,cities\n"
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"url": f"http://127.0.0.1:{server.server_address[1]}/v1", "model": "tiny"}
    try:
        collect = example("collect_answers").main
        assert collect(questions, out, samples=2, **options) == 4
        assert collect(questions, out, samples=3, **options) == 2  # what is there is not asked again
    finally:
        server.shutdown()
        server.server_close()
    columns = Columns(
        confidence="stated", correct="is_right", units="question_id", percent=True, missing="drop"
    )
    found = load_predictions(out, columns=columns)
    assert (found.n, found.n_units) == (5, 2)
    assert found.correct.tolist() == [True, False, False, True, False]
    assert set(found.confidence.tolist()) == {0.9}


def test_the_service_answers_over_http_with_the_calibrators_probabilities(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    graph = (
        '<ir_version: 8, opset_import: ["" : 13]>\n'
        "classifier (float[N,3] x) => (float[N,3] logits) <float two = {2.0}> { logits = Mul(x, two) }"
    )
    onnx.save(onnx.parser.parse_model(graph), tmp_path / "model.onnx")
    logits, labels = draw(500, 3, seed=0, sharpen=3.0)
    named = Predictions(logits=logits, labels=labels, class_names=("ant", "bee", "cat"))
    fitted = compare(named, methods=["temperature"])["temperature"].calibrator
    join_onnx(tmp_path / "model.onnx", fitted, tmp_path / "both.onnx")
    app = example("serve").make_app(str(tmp_path / "both.onnx"))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", ws="none"))
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()

    def ask(rows):
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/predict",
            json.dumps({"rows": rows}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    try:
        rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        answers, expected = ask(rows.tolist()), fitted.predict_proba(2 * rows)
        for answer, row in zip(answers, expected, strict=True):
            assert list(answer["probabilities"]) == ["ant", "bee", "cat"]
            assert list(answer["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-5)
            assert answer["predicted"] == ("ant", "bee", "cat")[row.argmax()]
        for wrong in ([], [[1.0, 2.0]]):
            with pytest.raises(urllib.error.HTTPError, match="422"):
                ask(wrong)
    finally:
        server.should_exit = True
        thread.join(timeout=60)
    assert not thread.is_alive()
