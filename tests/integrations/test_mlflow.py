"""MLflow models: the saved model gives what the network and its calibrator give, in a fresh process."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from calibrant import CalibratedModel, InputError
from calibrant.posthoc import ConfidenceCalibrator, TemperatureScaling

mlflow = pytest.importorskip("mlflow.pyfunc", reason="mlflow-skinny is not installed")
save_mlflow = pytest.importorskip("calibrant.integrations.mlflow").save_mlflow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of MLflow about itself, and of PyTorch about its exports
]


def test_a_network_and_its_calibrator_are_one_model_that_needs_neither_code_nor_command_line(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    inputs = torch.randn(7, 4)
    folder = save_mlflow(tmp_path / "model", TemperatureScaling(2.5), network=network, example=inputs[:3])
    expected = CalibratedModel(network.eval(), TemperatureScaling(2.5)).predict_proba(inputs)
    loaded = mlflow.load_model(str(folder))
    np.testing.assert_allclose(loaded.predict(inputs.numpy()), expected.numpy(), rtol=1e-5)
    assert loaded.metadata.signature.inputs.input_types()[0] == np.float32
    assert loaded.metadata.load_input_example(str(folder)).shape == (2, 4)
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    code = f"""
import sys, warnings; warnings.simplefilter("ignore")
import mlflow.pyfunc, numpy as np
model = mlflow.pyfunc.load_model({str(folder)!r})
print(model.predict(np.load({str(tmp_path / "inputs.npy")!r}))[0, 0])
print([name for name in ("calibrant.cli", "typer") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, loaded_commands = done.stdout.strip().splitlines()[-2:]
    assert float(first) == pytest.approx(float(expected[0, 0]), rel=1e-5)
    assert loaded_commands == "[]"
    assert {path.suffix for path in folder.rglob("*") if path.is_file()}.isdisjoint({".pkl", ".pickle"})


def test_a_calibrator_alone_takes_logits_as_frames_and_arrays(tmp_path):
    logits = np.random.default_rng(0).normal(size=(5, 3))
    folder = save_mlflow(tmp_path / "model", TemperatureScaling(2.0), example=logits)
    loaded = mlflow.load_model(str(folder))
    expected = TemperatureScaling(2.0).predict_proba(logits)
    np.testing.assert_allclose(loaded.predict(logits), expected)
    np.testing.assert_allclose(loaded._model_impl.predict(pd.DataFrame(logits)), expected)


def test_a_calibrator_of_confidences_takes_confidences(tmp_path):
    rng = np.random.default_rng(0)
    stated = rng.beta(5, 2, size=300)
    calibrator = ConfidenceCalibrator.fit_pairs(stated, rng.random(300) < stated**2, method="platt")
    save_mlflow(tmp_path / "model", calibrator, example=stated[:4])
    found = mlflow.load_model(str(tmp_path / "model")).predict(stated[:20])
    np.testing.assert_allclose(found, calibrator.predict_confidence(stated[:20]), rtol=1e-12)


def test_a_folder_that_is_there_and_too_few_examples_are_refused(tmp_path):
    with pytest.raises(InputError, match="path: expected a new folder, got .*; name another one"):
        save_mlflow(tmp_path, TemperatureScaling(2.0), example=[[0.0, 1.0]] * 2)
    with pytest.raises(InputError, match="example: expected at least two inputs, got shape"):
        save_mlflow(tmp_path / "new", TemperatureScaling(2.0), example=[[0.0, 1.0]])
    assert list(tmp_path.iterdir()) == []
