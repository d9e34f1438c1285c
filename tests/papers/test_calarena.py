"""CalArena's files and calls."""

import sys

import numpy as np
import pytest

from calibrant.errors import FormatError, InputError, MissingPackageError
from calibrant.papers.calarena import CalArenaCalibrator, read_tasks, run_calarena
from calibrant.posthoc import TemperatureScaling


def sharp(rng, n, k):
    """Probabilities that are twice as sure as they should be, with labels."""
    logits = rng.normal(scale=1.5, size=(n, k))
    labels = (logits + rng.gumbel(size=(n, k))).argmax(axis=1)
    raised = np.exp(2 * logits)
    return raised / raised.sum(axis=1, keepdims=True), labels


@pytest.fixture
def file(tmp_path):
    """A file of CalArena's layout: a problem of two classes and one of four, two models each."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "calarena.h5", "w") as out:
        for dataset, k in (("binary", 2), ("multi", 4)):
            for model in ("forest", "net"):
                group = out.create_group(f"{dataset}/{model}")
                for part, n in (("cal", 300), ("test", 400)):
                    p, y = sharp(rng, n, k)
                    group[f"probas_{part}"] = p[:, 1] if k == 2 else p
                    group[f"labels_{part}"] = y
    return tmp_path / "calarena.h5"


def test_a_file_is_read_task_by_task(file):
    tasks = list(read_tasks(file))
    assert [(task.dataset, task.model) for task in tasks] == [
        ("binary", "forest"),
        ("binary", "net"),
        ("multi", "forest"),
        ("multi", "net"),
    ]
    assert [(task.calibration.n, task.test.n, task.test.k) for task in tasks[1:3]] == [
        (300, 400, 2),
        (300, 400, 4),
    ]


def test_the_probabilities_and_labels_are_those_of_the_file(file):
    import h5py

    with h5py.File(file) as source:
        positive, labels = source["binary/net/probas_test"][()], source["binary/net/labels_test"][()]
    task = list(read_tasks(file))[1]
    assert task.test.to_probs()[:, 1].numpy() == pytest.approx(positive)
    assert task.test.labels.tolist() == labels.tolist()


def test_the_parts_of_a_file_are_the_whole_of_it(file):
    parts = [(t.dataset, t.model) for part in range(3) for t in read_tasks(file, part=part, parts=3)]
    assert sorted(parts) == [(t.dataset, t.model) for t in read_tasks(file)]


def test_every_method_is_run_on_every_task_and_repairs_what_is_too_sure(file):
    settings = {"methods": ["uncalibrated", "temperature", "smart"]}
    records = list(run_calarena({"file": file.name}, settings, 0, file.parent))
    assert len(records) == 4 * 3
    for record in records:
        if record.labels["method"] == "temperature":
            assert record.values["phi_nll"] > 0.05
            assert record.values["phi_brier"] > 0
    tasks = {(r.labels["dataset"], r.labels["model"]) for r in records}
    assert len(tasks) == 4


@pytest.mark.parametrize("k", [2, 4])
def test_the_adapter_is_the_calibrator_on_the_logarithm_of_the_probabilities(k):
    p, y = sharp(np.random.default_rng(1), 500, k)
    adapter = CalArenaCalibrator("temperature").fit(p[:300], y[:300])
    own = TemperatureScaling.fit(np.log(p[:300]), y[:300]).predict_proba(np.log(p[300:]))
    assert adapter.fitted_
    assert adapter.predict_proba(p[300:]) == pytest.approx(own)


def test_the_adapter_takes_probabilities_of_class_1_and_returns_both():
    p, y = sharp(np.random.default_rng(2), 200, 2)
    whole = CalArenaCalibrator("beta").fit(p, y).predict_proba(p)
    half = CalArenaCalibrator("beta").fit(p[:, 1], y).predict_proba(p[:, 1])
    column = CalArenaCalibrator("beta").fit(p[:, 1:], y).predict_proba(p[:, 1:])
    assert whole.shape == (200, 2)
    assert half == pytest.approx(whole)
    assert column == pytest.approx(whole)


def test_probabilities_of_zero_are_taken_and_the_result_is_a_distribution():
    rng = np.random.default_rng(3)
    votes = rng.multinomial(5, [0.6, 0.3, 0.1], size=300) / 5
    y = np.array([rng.choice(3, p=row) for row in votes])
    found = CalArenaCalibrator("structured_matrix").fit(votes, y).predict_proba(votes)
    assert found.sum(axis=1) == pytest.approx(np.ones(300))
    assert found.min() >= 0


def test_the_adapter_keeps_the_probabilities_where_a_method_cannot_be_fitted():
    p = np.array([[0.9, 0.1], [0.2, 0.8]] * 20)
    adapter = CalArenaCalibrator("temperature", prior=0).fit(p, p.argmax(axis=1))
    assert not adapter.fitted_
    assert adapter.predict_proba(p) == pytest.approx(p)


def test_an_adapter_that_is_not_fitted_refuses_to_predict():
    with pytest.raises(InputError, match="call fit first"):
        CalArenaCalibrator("temperature").predict_proba([[0.5, 0.5]])


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(file, tmp_path):
    import h5py

    with pytest.raises(InputError, match="does not exist"):
        next(read_tasks(tmp_path / "none.h5"))
    (tmp_path / "text.h5").write_text("not HDF5")
    with pytest.raises(FormatError, match="expected an HDF5 file"):
        next(read_tasks(tmp_path / "text.h5"))
    with h5py.File(file, "a") as out:
        del out["binary/forest/labels_test"]
    with pytest.raises(FormatError, match="expected labels_test in binary/forest"):
        next(read_tasks(file))


def test_a_missing_h5py_is_said_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingPackageError, match="^CalArena: expected the package h5py, got none"):
        next(read_tasks(tmp_path / "calarena.h5"))
