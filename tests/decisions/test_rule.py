"""Rules: saved with their calibrator, applied to other predictions, exported; damaged files are refused."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from calibrant import Predictions
from calibrant.decisions import CostRule, Costs, ThresholdRule, load_rule, threshold_for_risk
from calibrant.decisions.rule import Rule
from calibrant.errors import FormatError, InputError
from calibrant.integrations.onnx import export_onnx
from calibrant.posthoc import ConfidenceCalibrator, TemperatureScaling, load_calibrator

NAMES = ("cat", "dog", "fox")


def classes(n=300, seed=0, names=NAMES):
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(n, 3))).astype(np.float32)
    labels = np.where(rng.random(n) < 0.9, logits.argmax(axis=1), rng.integers(3, size=n))
    return Predictions(logits=logits, labels=labels, class_names=names)


def answers(n=300, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.choice([0.5, 0.8, 0.9, 0.95, 1.0], n)
    return Predictions(confidence=confidence, correct=rng.random(n) < confidence)


def rules():
    """A rule of each kind and form, with the predictions that it decides about."""
    pairs = answers()
    repair = ConfidenceCalibrator.fit_pairs(pairs.confidence, pairs.correct, method="platt")
    to_classes = {"n_classes": 3, "class_names": NAMES, "calibrator": TemperatureScaling(2.0)}
    costs = Costs([[0, 1, 5], [1, 0, 5], [9, 9, 0]], actions=["pet", "walk", "flee"])
    answering = Costs([[4], [0]], actions=["answer"], classes=["wrong", "right"]).with_ask(1.0)
    return {
        "threshold": (ThresholdRule(0.7, risk=0.1, level=0.95, **to_classes), classes()),
        "costs": (CostRule(costs, **to_classes), classes()),
        "threshold of pairs": (ThresholdRule(0.85, risk=0.1, level=0.95), pairs),
        "threshold of repaired pairs": (ThresholdRule(0.85, risk=0.1, level=0.95, calibrator=repair), pairs),
        "costs of pairs": (CostRule(answering, calibrator=repair), pairs),
    }


KINDS = list(rules())


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_rule_decides_as_before(kind, tmp_path):
    rule, given = rules()[kind]
    rule.save(tmp_path / "rule.safetensors")
    loaded = load_rule(tmp_path / "rule.safetensors")
    assert type(loaded) is type(rule)
    assert loaded.decide(given).columns == rule.decide(given).columns
    assert {name: getattr(loaded, name) for name in rule.options} == {
        name: getattr(rule, name) for name in rule.options
    }
    assert isinstance(Rule.load(tmp_path / "rule.safetensors"), type(rule))


def test_a_rule_of_another_kind_is_refused(tmp_path):
    rules()["costs"][0].save(tmp_path / "rule.safetensors")
    with pytest.raises(FormatError, match="expected a ThresholdRule, got a CostRule"):
        ThresholdRule.load(tmp_path / "rule.safetensors")
    with pytest.raises(FormatError, match="expected a saved calibrator, got a safetensors file of another"):
        load_calibrator(tmp_path / "rule.safetensors")
    TemperatureScaling(2.0).save(tmp_path / "calibrator.safetensors")
    with pytest.raises(FormatError, match="expected a saved rule, got a safetensors file of another kind"):
        load_rule(tmp_path / "calibrator.safetensors")
    with pytest.raises(FormatError, match="none.safetensors: expected a saved rule, got no such file"):
        load_rule(tmp_path / "none.safetensors")


def test_classes_in_another_order_are_put_in_order_and_others_refused():
    for kind in ("threshold", "costs"):
        rule, given = rules()[kind]
        order = [2, 0, 1]
        other = Predictions(logits=given.logits[:, order], class_names=[NAMES[place] for place in order])
        assert rule.decide(other).columns == rule.decide(given).columns
        with pytest.raises(InputError, match="expected the classes cat, dog, fox"):
            rule.decide(classes(names=("cat", "dog", "owl")))
        with pytest.raises(InputError, match="expected class scores"):
            rule.decide(answers())
    with pytest.raises(InputError, match="expected confidences of a black box, which the ThresholdRule"):
        rules()["threshold of pairs"][0].decide(classes())


@pytest.mark.parametrize("kind", ["threshold", "threshold of repaired pairs"])
def test_the_table_of_a_threshold_has_the_class_the_confidence_and_the_answer(kind):
    rule, given = rules()[kind]
    found = rule.decide(given).columns
    expected = [] if given.k is None else ["predicted"]
    assert list(found) == [*expected, "confidence", "answer"]
    c = torch.tensor(found["confidence"])
    assert found["answer"] == (c >= rule.confidence).tolist()
    if given.k is not None:
        probs = torch.softmax(given.logits.double() / 2, dim=1)
        assert c.tolist() == pytest.approx(probs.amax(dim=1).tolist())
        assert found["predicted"] == [NAMES[place] for place in probs.argmax(dim=1).tolist()]


def test_the_table_of_stated_confidences_has_the_answer_only():
    rule, given = rules()["threshold of pairs"]
    found = rule.decide(given).columns
    assert found == {"answer": (given.confidence >= 0.85).tolist()}


def _changed(path, change, tensors=None):
    """Write a rule again with another header, and no digest that would give the change away."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    table = json.loads(header["rule"])
    change(table)
    header = {**header, "rule": json.dumps(table)}
    del header["digest"]
    save_file({**held, **(tensors or {})}, path, metadata=header)


@pytest.mark.parametrize(
    ("kind", "change", "tensors", "message"),
    [
        ("threshold", lambda t: t.update(rule="Guess"), None, "rule: expected one that is known here"),
        ("threshold", lambda t: t.update(n_classes=4), None, "class_names: expected 4 different names"),
        ("threshold", lambda t: t["options"].pop("risk"), None, "risk: expected a value, got none"),
        ("threshold", lambda t: t["options"].update(risk=2.0), None, "risk: expected a number above 0 and"),
        ("threshold", lambda t: t["options"].update(level="high"), None, "level: expected"),
        ("threshold", lambda t: t.update(calibrator=None), None, "expected no such tensor, got one"),
        ("threshold", lambda _: None, {"threshold": torch.tensor(torch.nan)}, "threshold: expected log-odds"),
        ("threshold", lambda _: None, {"threshold": torch.zeros(2)}, "threshold: expected shape"),
        ("threshold", lambda _: None, {"more": torch.zeros(2)}, "more: expected no such tensor, got one"),
        ("costs", lambda t: t["options"].update(actions=["a", "b"]), None, "actions: expected 3 different"),
        ("costs", lambda _: None, {"costs": torch.zeros(2, 3)}, "costs: expected shape"),
        ("costs", lambda _: None, {"costs": torch.full((3, 3), torch.inf)}, "costs: expected finite numbers"),
        ("costs of pairs", lambda _: None, {"costs": torch.zeros(3, 2)}, "costs: expected shape"),
    ],
)
def test_a_rule_that_was_changed_is_refused_in_one_sentence(kind, change, tensors, message, tmp_path):
    path = tmp_path / "rule.safetensors"
    rules()[kind][0].save(path)
    _changed(path, change, tensors)
    with pytest.raises(FormatError) as caught:
        load_rule(path)
    assert str(caught.value).startswith("rule.safetensors: ")
    assert message in str(caught.value)


def test_damaged_bytes_are_refused(tmp_path):
    path = tmp_path / "rule.safetensors"
    rules()["threshold"][0].save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(FormatError, match="rule.safetensors: expected a safetensors file"):
        load_rule(path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FormatError, match="rule.safetensors: "):
        load_rule(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threshold", "costs"])
def test_the_graph_decides_as_the_rule(kind, tmp_path):
    rule, given = rules()[kind]
    export_onnx(rule, tmp_path / "rule.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "rule.onnx", providers=["CPUExecutionProvider"])
    found = session.run(list(rule.outputs), {"logits": given.logits.numpy()})
    got = dict(zip(rule.outputs, found, strict=True))
    expected = dict(zip(rule.outputs, rule(rule.log_probs(given)), strict=True))
    rule.save(tmp_path / "rule.safetensors")  # the export leaves the classes of rules as they were
    assert type(load_rule(tmp_path / "rule.safetensors")) is type(rule)
    for output in rule.outputs:
        assert got[output] == pytest.approx(expected[output].numpy(), rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_ties_are_one_decision_in_the_graph_too(tmp_path):
    given, other = answers(2000), answers(500, seed=1)
    repair = ConfidenceCalibrator.fit_pairs(other.confidence, other.correct, method="platt")
    found = threshold_for_risk(given, 0.15, calibrator=repair)
    assert 0 < found.coverage < 1
    export_onnx(found.rule, tmp_path / "rule.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "rule.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(["answer"], {"confidence": given.confidence.float().numpy()})
    assert got.tolist() == found.rule.decide(given).columns["answer"]
    assert int(got.sum()) == found.answered
