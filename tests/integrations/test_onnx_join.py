"""One ONNX graph of a classifier and its calibrator, beside both one after the other."""

import warnings

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.decisions import PredictionSets
from calibrant.errors import CalibrantError, InputError
from calibrant.evaluation import compare
from calibrant.integrations.onnx import export_onnx
from calibrant.integrations.onnx_join import join_onnx
from calibrant.posthoc import TemperatureScaling

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

CLASSES = ("dog", "cat", "ant")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 4)).astype(np.float32)
    y = np.array(["cat", "dog", "ant"])[(x[:, 0] + rng.normal(size=900) > 0).astype(int) + (x[:, 1] > 0)]
    return x, y


def predictions(model, x, y, classes=None):
    """The probabilities of a classifier of scikit-learn, with the classes in the order of ``CLASSES``."""
    places = [list(model.classes_ if classes is None else classes).index(name) for name in CLASSES]
    return Predictions(probs=model.predict_proba(x)[:, places], labels=y, class_names=CLASSES)


@pytest.fixture(scope="module")
def forest(rows, tmp_path_factory):
    """A forest whose classes are in another order than the calibrator's, its graph, and a calibrator."""
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier

    x, y = rows
    model = RandomForestClassifier(20, random_state=0).fit(x[:300], y[:300])
    path = tmp_path_factory.mktemp("forest") / "model.onnx"
    path.write_bytes(to_onnx(model, x[:1]).SerializeToString())
    fitted = compare(predictions(model, x[300:600], y[300:600]), methods=["vector"])["vector"].calibrator
    return model, path, fitted


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A network of PyTorch in an older operator set, with features beside its logits."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

        def forward(self, x):
            features = torch.relu(self.hidden(x))
            return self.head(features), features

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("network") / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model := Network().eval(),
            (torch.zeros(2, 4),),
            path,
            input_names=["x"],
            output_names=["scores", "features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
            opset_version=18,
        )
    return model, path


def run_graph(path, **inputs):
    return runtime.InferenceSession(str(path)).run(None, inputs)


def test_a_forest_and_its_calibrator_are_one_graph_in_the_calibrators_order(forest, rows, tmp_path):
    model, path, fitted = forest
    join_onnx(path, fitted, tmp_path / "both.onnx")
    (log_probs,) = run_graph(tmp_path / "both.onnx", X=rows[0][600:])
    expected = fitted.predict_proba(predictions(model, *(each[600:] for each in rows)).to_logits())
    np.testing.assert_allclose(np.exp(log_probs), expected, atol=1e-5)
    session = runtime.InferenceSession(str(tmp_path / "both.onnx"))
    assert session.get_modelmeta().custom_metadata_map["class_names"] == '["dog", "cat", "ant"]'
    assert [each.name for each in session.get_outputs()] == ["log_probs"]


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_boosted_trees_and_a_calibrator_are_one_graph(library, forest, rows, tmp_path):
    trees = pytest.importorskip(library, reason=f"{library} is not installed")
    onnxmltools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = rows
    inputs, classes = [("x", FloatTensorType([None, 4]))], None
    if library == "lightgbm":
        model = trees.LGBMClassifier(n_estimators=5, verbose=-1).fit(x[:300], y[:300])
        graph = onnxmltools.convert_lightgbm(model, initial_types=inputs)
    else:  # XGBoost takes numbers for classes, and its graph has no names
        classes = CLASSES
        model = trees.XGBClassifier(n_estimators=5).fit(x[:300], [classes.index(name) for name in y[:300]])
        graph = onnxmltools.convert_xgboost(model, initial_types=inputs)
    (tmp_path / "model.onnx").write_bytes(graph.SerializeToString())
    join_onnx(tmp_path / "model.onnx", forest[2], tmp_path / "both.onnx")
    (log_probs,) = run_graph(tmp_path / "both.onnx", x=x[600:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's on names of columns
        expected = forest[2].predict_proba(predictions(model, x[600:], y[600:], classes).to_logits())
    np.testing.assert_allclose(np.exp(log_probs), expected, atol=1e-5)


def test_a_network_feeds_logits_and_features_and_a_rule_decides(network, rows, tmp_path):
    model, path = network
    x = rows[0]
    with torch.no_grad():
        z, _ = model(torch.from_numpy(x))
    y = np.where(np.random.default_rng(1).random(900) < 0.7, z.argmax(dim=1), 0)
    rule = PredictionSets.fit(Predictions(logits=z, labels=y), alpha=0.2)
    join_onnx(path, rule, tmp_path / "both.onnx", logits="scores")
    found = run_graph(tmp_path / "both.onnx", x=x[:50])
    expected, _ = rule(z[:50].double().log_softmax(dim=1))
    # A class whose score lies at the threshold to the last digit may be in or out.
    assert (np.asarray(found[0], dtype=bool) == expected.numpy()).mean() >= 0.98
    with pytest.raises(InputError, match=r"one output that is named logits .* got scores, features; say"):
        join_onnx(path, rule, tmp_path / "both.onnx")


def test_what_cannot_be_joined_is_one_sentence_and_leaves_no_file(forest, network, tmp_path):
    _, path, fitted = forest
    out = tmp_path / "both.onnx"
    logits = np.random.default_rng(0).normal(size=(300, 3))
    plain = TemperatureScaling.fit(
        logits, (logits + np.random.default_rng(1).normal(size=(300, 3))).argmax(1)
    )
    named = Predictions(logits=logits, labels=logits.argmax(1), class_names=("a", "b", "c"))
    others = compare(named, methods=["uncalibrated"])["uncalibrated"].calibrator
    wide = TemperatureScaling.fit(
        2 * np.eye(5)[[0, 1, 2, 3, 4] * 20] - 1, [0, 1, 2, 3, 4] * 19 + [1, 2, 3, 4, 0]
    )
    (tmp_path / "text.onnx").write_text("no graph")
    for call, message in (
        (
            lambda: join_onnx(tmp_path / "none.onnx", fitted, out),
            "expected an ONNX graph, got no file none.onnx",
        ),
        (lambda: join_onnx(tmp_path / "text.onnx", fitted, out), "expected an ONNX graph, got text.onnx"),
        (lambda: join_onnx(path, others, out), "expected the classes a, b, c, got ant, cat, dog"),
        (
            lambda: join_onnx(path, fitted, out, probs="p"),
            "probs: expected one of the outputs output_label, ",
        ),
        (lambda: join_onnx(path, fitted, out, probs="p", logits="z"), "expected either logits or probs"),
        (lambda: join_onnx(path, plain, out, n_classes=4), "n_classes: expected 3, which the calibrator"),
        (lambda: join_onnx(path, wide, out), "expected scores of 5 classes in .* got shape"),
        (lambda: join_onnx(network[1], fitted, out, probs="scores"), "rows that do not sum to one"),
    ):
        with pytest.raises(CalibrantError, match=message):
            call()
    assert not out.exists()


def test_a_calibrator_alone_is_still_exported(forest, tmp_path):
    export_onnx(forest[2], tmp_path / "alone.onnx")
    assert [each.name for each in runtime.InferenceSession(str(tmp_path / "alone.onnx")).get_inputs()] == [
        "logits"
    ]
