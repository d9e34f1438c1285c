"""Typical mistakes: each is refused, or named in a warning, with its own remedy."""

import warnings

import numpy as np
import pytest
import torch

from calibrant import Predictions, load_predictions, save_predictions
from calibrant.data import Columns
from calibrant.errors import CalibrantError
from calibrant.inputs import _warn_of_probs, check_logits
from calibrant.mistakes import look_like_probs
from calibrant.streams import open_stream

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(40, 3)) * 2
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
LABELS = np.arange(40) % 3
SINGLE = PROBS[:, 0]
SEVERAL = RNG.random((40, 3))
AS_LABELS = "pass them as LabelPredictions"

#: What a person gives, as arguments of Predictions or as the text of a table, and what the error advises.
MISTAKES = {
    "percent": ({"probs": 100 * PROBS}, "these look like percent; divide by 100"),
    "whole percent": ({"probs": np.round(100 * PROBS)}, "these look like percent; divide by 100"),
    "percent of class 1": ({"probs": 100 * SINGLE}, "divide by 100 if these are percent"),
    "percent as text": ("probs_0,probs_1,labels\n81%,19%,0\n", "these are percent: say percent=True"),
    "percent said of fractions": (
        ("probs_0,probs_1,labels\n0.8,0.2,0\n", "percent"),
        "leave out percent=True",
    ),
    "logits for probabilities": ({"probs": LOGITS}, "if these are logits, pass them as logits"),
    "positive logits for probabilities": ({"probs": LOGITS + 9}, "if these are logits, pass them as logits"),
    "log-odds for probabilities": ({"probs": LOGITS[:, 0]}, "if these are logits, pass them as logits"),
    "votes": (
        {"probs": RNG.multinomial(7, [0.5, 0.3, 0.2], 40)},
        "divide each row by its sum if it holds votes",
    ),
    "predicted classes for probabilities": (
        {"probs": LABELS},
        "these look like predicted classes; pass prob",
    ),
    "several labels at once": ({"probs": SEVERAL}, AS_LABELS),
    "several labels at once, few of them": ({"probs": SEVERAL / 9}, AS_LABELS),
    "a class left out": (
        {"probs": PROBS[:, :2]},
        "if classes are left out, add them or one column for the rest",
    ),
    "digits cut": ({"probs": np.floor(PROBS * 100) / 100}, "the digits look cut; store more of them"),
    "transposed probabilities": ({"probs": PROBS.T}, "is transposed; pass probs.T"),
    "transposed logits": ({"logits": LOGITS.T, "labels": LABELS}, "look transposed, pass their .T"),
    "NaN": ({"logits": np.where(LOGITS > 3, np.nan, LOGITS)}, "drop or repair such rows"),
    "infinity": ({"logits": np.where(LOGITS > 3, np.inf, LOGITS)}, "use a large finite number"),
    "one-hot labels": (
        {"probs": PROBS, "labels": np.eye(3)[LABELS]},
        "looks one-hot; pass labels.argmax(axis=1)",
    ),
    "a column of labels": ({"probs": PROBS, "labels": LABELS[:, None]}, "pass labels.ravel()"),
    "several labels for classes": ({"probs": PROBS, "labels": SEVERAL > 0.5}, AS_LABELS),
    "probabilities for labels": (
        {"probs": PROBS, "labels": PROBS},
        "probabilities of the labels; pass labels.arg",
    ),
    "classes from one": (
        {"probs": PROBS, "labels": LABELS + 1},
        "counted from one, pass labels - 1, or read a file with classes=",
    ),
    "classes to ignore": ({"probs": PROBS, "labels": LABELS - 1}, "drop rows that mark something to ignore"),
    "fractions for labels": (
        {"probs": PROBS, "labels": SINGLE},
        "if these are probabilities, pass them as probs",
    ),
    "missing labels": (
        {"probs": PROBS, "labels": np.where(LABELS, 1.0, np.nan)},
        "drop rows without a label",
    ),
    "names without classes": (
        {"probs": SINGLE[:2], "labels": ["cat", "dog"]},
        "with class_names=",
    ),
    "a name with a typo": (
        {"probs": SINGLE[:2], "labels": ["cat", "dgo"], "class_names": ["cat", "dog"]},
        "expected one of the classes cat, dog, got 'dgo' in row 1; did you mean 'dog'?",
    ),
    "highest probability for probabilities": (
        {"probs": PROBS.max(axis=1), "labels": LABELS},
        "(a single column is that of class 1)",
    ),
    "missing column": (
        "probs_0,probs_1,target\n0.8,0.2,0\n",
        "say what holds the labels with labels='target'",
    ),
    "column with a typo": (
        "prob_0,prob_1,labels\n0.8,0.2,0\n",
        "did you mean 'probs_0' by 'prob_0'? Say probs='prob'",
    ),
    "wrong delimiter": (
        "probs_0 probs_1 labels\n0.8 0.2 0\n",
        "expected columns separated by commas, semicolons",
    ),
    "points and decimal commas": (
        "probs_0;probs_1;labels\n0.8;0,2;0\n0,8;0.2;0\n",
        "write all of them with a point",
    ),
    "text for numbers": (
        "probs_0,probs_1,labels\n0.8,0.2,0\nhigh,low,0\n",
        "expected a number, got 'high' in row 1",
    ),
}


def give(given, path):
    if isinstance(given, dict):
        return Predictions(**given)
    text, *options = (given,) if isinstance(given, str) else given
    path.write_text(text)
    return load_predictions(path, columns=Columns(**dict.fromkeys(options, True)))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_own_remedy(mistake, tmp_path):
    given, remedy = MISTAKES[mistake]
    with pytest.raises(CalibrantError) as caught:
        give(given, tmp_path / "preds.csv")
    message = str(caught.value)
    assert remedy in message
    assert "\n" not in message
    # This advice is right for votes and cut digits alone; it spoils probabilities of several labels.
    assert ("divide each row by its sum" in message) == (mistake in ("votes", "digits cut"))


@pytest.fixture
def warned():
    """Return a function that counts the warnings of a call, as if no argument had been warned of yet."""

    def count(call):
        _warn_of_probs.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        return [str(warning.message) for warning in caught]

    yield count
    _warn_of_probs.cache_clear()


def test_probabilities_given_as_logits_are_named_once(warned, tmp_path):
    def twice():
        for _ in range(2):
            Predictions(logits=PROBS)

    (message,) = warned(twice)
    assert message.startswith("logits: expected logits, got rows of at least 0 that all sum to one")
    assert "pass them as probs, or in a file rename the columns to probs" in message
    for name in ("preds.csv", "preds.parquet"):
        warned(lambda path=tmp_path / name: save_predictions(Predictions(logits=PROBS, labels=LABELS), path))
        assert len(warned(lambda path=tmp_path / name: load_predictions(path))) == 1
    assert len(warned(lambda: list(open_stream(tmp_path / "preds.parquet").batches(rows=20)))) == 1
    assert len(warned(lambda: check_logits(torch.tensor(PROBS, dtype=torch.bfloat16)))) == 1


@pytest.mark.parametrize(
    "logits",
    [
        LOGITS,
        np.abs(LOGITS),
        np.maximum(LOGITS, 0),
        np.log(PROBS),
        LOGITS - LOGITS.mean(axis=1, keepdims=True) + 1 / 3,  # rows sum to one, but some entries are negative
        np.eye(3),
        SINGLE,
        np.concatenate([PROBS, LOGITS]),
    ],
)
def test_real_logits_get_no_warning(warned, logits):
    assert warned(lambda: check_logits(logits)) == []


def test_a_few_rows_are_enough_to_tell_real_logits(monkeypatch):
    seen = []
    monkeypatch.setattr("calibrant.mistakes._are_probs", lambda rows, _: seen.append(len(rows)))
    look_like_probs(torch.randn(100_000, 3), tolerance=1e-3)
    assert seen == [20]
