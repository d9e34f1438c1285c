"""Calibrators as ONNX graphs."""

import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from calibrant.errors import CalibrantError, InputError
from calibrant.integrations.onnx import export_onnx
from calibrant.integrations.sklearn import CalibratedClassifier
from calibrant.posthoc import (
    CalibratedModel,
    Calibrator,
    ConfidenceCalibrator,
    FeatureClipping,
    GroupCalibration,
    TemperatureScaling,
)
from calibrant.posthoc.by_group import ByGroup
from calibrant.posthoc.names import METHODS
from tests.conftest import at_length, placed, softmax

# The others have tests of their graphs among their own tests.
CALIBRATORS = [
    calibrator
    for calibrator in dict.fromkeys(method.calibrator for method in METHODS.values())
    if calibrator.__name__ not in ("Pool", "Combination", "IntraOrderPreserving")
]
# Each of these has operations of its own; the graphs of the others are made of the same ones.
NOW = (
    *("BetaCalibration", "FeatureClipping", "GroupCalibration"),
    *("IsotonicCalibration", "SMART", "SplineCalibration", "VennAbers"),
)


def linear_model(n, k=4, d=6, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, d)).astype(np.float32)
    logits = features @ np.random.default_rng(99).normal(size=(d, k)).astype(np.float32)
    labels = (softmax(logits).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return placed(2 * logits), labels, placed(features)


def run(path, logits, features=None):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    fed = {"logits": logits} | ({} if features is None else {"features": features})
    return session.run(["log_probs"], fed)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    at_length(CALIBRATORS, [each for each in CALIBRATORS if each.__name__ in NOW]),
    ids=lambda method: method.__name__,
)
def test_the_graph_gives_what_the_calibrator_gives(method, tmp_path):
    logits, labels, features = linear_model(120)
    calibrator = method.fit(logits, labels, features=features)
    export_onnx(calibrator, tmp_path / "graph.onnx")
    uses_features = [node.name for node in onnx.load(tmp_path / "graph.onnx").graph.input] == [
        "logits",
        "features",
    ]
    for n in (1, 33):
        z, _, h = linear_model(n, seed=n)
        expected = calibrator.predict_proba(z, h)
        got = np.exp(run(tmp_path / "graph.onnx", z, h if uses_features else None))
        assert got == pytest.approx(expected, abs=1e-5)


def test_a_chain_is_one_graph(tmp_path):
    logits, labels, features = linear_model(300)
    calibrator = TemperatureScaling.then(FeatureClipping).fit(logits, labels, features=features)
    calibrator.save(tmp_path / "chain.safetensors")
    export_onnx(Calibrator.load(tmp_path / "chain.safetensors"), tmp_path / "graph.onnx")
    got = np.exp(run(tmp_path / "graph.onnx", logits, features))
    assert got == pytest.approx(calibrator.predict_proba(logits, features), abs=1e-5)


def test_the_graph_is_one_file_with_named_ends_and_any_batch_size(tmp_path):
    export_onnx(TemperatureScaling(2.0, n_classes=3), tmp_path / "graph.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["graph.onnx"]
    graph = onnx.load(tmp_path / "graph.onnx").graph
    (given,), (returned,) = graph.input, graph.output
    assert (given.name, returned.name) == ("logits", "log_probs")
    for value in (given, returned):
        batch, classes = value.type.tensor_type.shape.dim
        assert batch.dim_param
        assert classes.dim_value == 3


def test_a_graph_may_take_half_precision_and_returns_float32(tmp_path):
    logits, labels, features = linear_model(300)
    calibrator = FeatureClipping.fit(logits, labels, features=features)
    export_onnx(calibrator, tmp_path / "graph.onnx", half_precision=True)
    z, h = (40 * logits).astype(np.float16), features.astype(np.float16)
    got = run(tmp_path / "graph.onnx", z, h)
    assert got.dtype == np.float32
    assert got == pytest.approx(calibrator.predict_log_proba(z, h).numpy(), rel=1e-5, abs=1e-5)
    pairs = ConfidenceCalibrator.fit_pairs([0.9, 0.6, 0.8, 0.7], [True, False, True, False], method="platt")
    export_onnx(pairs, tmp_path / "pairs.onnx", half_precision=True)
    stated = np.array([0.65, 0.75, 0.999], dtype=np.float16)
    session = onnxruntime.InferenceSession(tmp_path / "pairs.onnx", providers=["CPUExecutionProvider"])
    (repaired,) = session.run(["repaired"], {"confidence": stated})
    assert repaired.dtype == pairs.predict_confidence(stated).dtype == np.float32
    assert repaired == pytest.approx(pairs.predict_confidence(stated), abs=1e-5)


class Slanted(TemperatureScaling):
    """A calibrator whose graph is not what it does."""

    def forward(self, logits, features=None):  # noqa: ARG002  # the signature of all calibrators
        shift = 0.0 if torch.compiler.is_exporting() else 1e-3
        return super().forward(logits + shift * torch.arange(logits.shape[1]))


class Double(TemperatureScaling):
    """A calibrator that asks for an operation which ONNX Runtime has in single precision only."""

    def forward(self, logits, features=None):  # noqa: ARG002  # the signature of all calibrators
        return super().forward(logits * torch.nn.functional.softplus(self.temperature).to(logits.dtype))


class Inexpressible(TemperatureScaling):
    """A calibrator that has no graph: what it does depends on the data."""

    def forward(self, logits, features=None):  # noqa: ARG002  # the signature of all calibrators
        return super().forward(logits if logits.sum() > 0 else 2 * logits)


@pytest.fixture(autouse=True, scope="module")
def _forget_the_methods_of_this_file():
    yield
    for name in ("Slanted", "Double", "Inexpressible"):
        Calibrator.methods.pop(name, None)


def test_double_precision_gives_way_where_the_runtime_has_none(tmp_path):
    calibrator = Double(1.5, n_classes=3)
    export_onnx(calibrator, tmp_path / "graph.onnx")
    logits = np.float32([[1, 2, 4], [0, 0, -3]])
    got = np.exp(run(tmp_path / "graph.onnx", logits))
    assert got == pytest.approx(calibrator.predict_proba(logits), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            Slanted,
            "^export: expected outputs equal to PyTorch's within 1e-05, got a difference of .* for Slanted",
        ),
        (
            Inexpressible,
            "^export: expected what ONNX can express, got Inexpressible; PyTorch reports",
        ),
    ],
)
def test_nothing_is_written_unless_the_graph_is_right(method, message, tmp_path):
    (tmp_path / "graph.onnx").write_text("the old one")
    with pytest.raises(CalibrantError, match=message):
        export_onnx(method(2.0, n_classes=3), tmp_path / "graph.onnx")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["the old one"]


def test_missing_packages_are_named_with_the_cure(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "calibrant.extras.find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    with pytest.raises(CalibrantError, match=r"onnxruntime, got none; install .* 'calibrant\[export\]'"):
        export_onnx(TemperatureScaling(2.0, n_classes=3), tmp_path / "graph.onnx")


def test_sizes_that_the_calibrator_does_not_know_have_to_be_given(tmp_path):
    with pytest.raises(
        InputError, match="^n_classes: expected a whole number, because this calibrator does not"
    ):
        export_onnx(TemperatureScaling(2.0), tmp_path / "graph.onnx")
    export_onnx(TemperatureScaling(2.0), tmp_path / "graph.onnx", n_classes=7)
    assert run(tmp_path / "graph.onnx", np.zeros((2, 7), np.float32)).shape == (2, 7)
    with pytest.raises(InputError, match="^n_classes: expected 3, which the calibrator was fitted on, got 7"):
        export_onnx(TemperatureScaling(2.0, n_classes=3), tmp_path / "graph.onnx", n_classes=7)
    by_features = GroupCalibration(torch.ones(1, 2, 6), torch.ones(1, 2), torch.ones(1, 2), on_features=True)
    with pytest.raises(
        InputError, match="^n_features: expected 6, which the calibrator was fitted on, got 5"
    ):
        export_onnx(by_features, tmp_path / "graph.onnx", n_classes=3, n_features=5)


def test_what_holds_a_calibrator_is_refused_by_its_name(tmp_path):
    model = CalibratedModel(torch.nn.Linear(3, 2), TemperatureScaling(2.0))
    with pytest.raises(InputError, match=r"got CalibratedModel; pass its \.calibrator, which takes"):
        export_onnx(model, tmp_path / "x.onnx")
    classifier = CalibratedClassifier(method="temperature", on_fit_error="warn")
    classifier.fit(*linear_model(60)[:2])
    with pytest.raises(InputError, match=r"got CalibratedClassifier; pass its \.calibrator_, which takes"):
        export_onnx(classifier, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_group_that_the_fit_has_not_seen_gets_the_common_map(tmp_path):
    common = TemperatureScaling(2.0)
    by_group = ByGroup(common, ["art", "law"], torch.tensor([0.5, -1.0]), torch.tensor([0.0, 0.3]))
    repair = ConfidenceCalibrator(by_group, torch.tensor([-4.0, 4.0]))
    export_onnx(repair, tmp_path / "c.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    stated = np.full(5, 0.8, dtype=np.float32)
    (found,) = session.run(["repaired"], {"confidence": stated, "groups": np.array([0, 1, -1, 2, 10**12])})
    expected = repair.predict_confidence(stated, groups=["art", "law", "new", "new", "new"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert session.get_modelmeta().custom_metadata_map == {"group_names": '["art", "law"]'}


def test_groups_of_two_columns_are_places_for_each_column_and_for_both(tmp_path):
    names = ["race=A", "race=B", "sex=f", "race=A, sex=f"]
    effects = torch.tensor([0.5, -1.0, 0.3, 0.2])
    by_group = ByGroup(TemperatureScaling(2.0), names, effects, effects / 3, (0.0,) * 6, ("race", "sex"))
    repair = ConfidenceCalibrator(by_group, torch.tensor([-4.0, 4.0]))
    export_onnx(repair, tmp_path / "c.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    stated, places = np.full(3, 0.8, dtype=np.float32), np.array([[0, 2, 3], [1, 2, -1], [-1, -1, -1]])
    (found,) = session.run(["repaired"], {"confidence": stated, "groups": places})
    groups = {"sex": ["f", "f", "x"], "race": ["A", "B", "x"]}
    np.testing.assert_allclose(found, repair.predict_confidence(stated, groups=groups), rtol=1e-5)
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["group_names"]) == names
    assert json.loads(known["group_columns"]) == ["race", "sex"]
