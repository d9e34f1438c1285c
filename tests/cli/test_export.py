"""The command ``export`` with a classifier's graph before the calibrator."""

import numpy as np
import pytest

from calibrant.posthoc import TemperatureScaling
from tests.conftest import draw

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

GRAPH = """
<ir_version: 8, opset_import: ["" : 13]>
classifier (float[N,4] x) => (float[N,4] scores) <float two = {2.0}> { scores = Mul(x, two) }
"""


@pytest.fixture
def files(tmp_path):
    """A graph that doubles its input, a temperature, and inputs."""
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "model.onnx")
    fitted = TemperatureScaling.fit(*draw(500, 4, seed=0, sharpen=3.0))
    fitted.save(tmp_path / "c.safetensors")
    np.savez(tmp_path / "inputs.npz", x=np.ones((7, 4), dtype=np.float32))
    return tmp_path, fitted


def test_a_classifier_and_its_calibrator_become_one_graph(run, files):
    folder, fitted = files
    model = ("--model", folder / "model.onnx", "--scores", "logits=scores", "--inputs", folder / "inputs.npz")
    code, out, err = run("export", folder / "c.safetensors", *model, "--out", folder / "both.onnx")
    assert (code, err) == (0, "")
    assert "model.onnx, then TemperatureScaling, as one ONNX graph" in " ".join(out.split())
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    (found,) = runtime.InferenceSession(str(folder / "both.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(np.exp(found), fitted.predict_proba(2 * x), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--model", "model.onnx", "--scores", "p"),
            "--scores: expected logits= or probs= and the name of an output, got 'p'",
        ),
        (("--scores", "probs=p"), "--scores: expected together with --model, got no model"),
        (("--inputs", "inputs.npz"), "--inputs: expected together with --model, got no model"),
        (("--model", "model.onnx"), "say which one it is with --scores logits=NAME or --scores probs=NAME"),
        (("--model", "model.onnx", "--scores", "probs=scores"), "say so with --scores logits=NAME"),
        (("--model", "none.onnx"), "--model: expected an ONNX graph, got no file none.onnx"),
    ],
)
def test_what_is_missing_is_one_sentence(run, files, monkeypatch, options, message):
    monkeypatch.chdir(files[0])
    code, _, err = run("export", "c.safetensors", "--out", "both.onnx", *options)
    assert code == 2
    assert message in " ".join(err.split())
    assert not (files[0] / "both.onnx").exists()
