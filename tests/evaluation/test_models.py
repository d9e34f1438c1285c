"""Two models are compared on the same rows: by their ids, and all models of a file pairwise."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import compare_models, paired_comparison
from calibrant.evaluation.models import split_by_group
from calibrant.evaluation.paired import matched


def model(seed, n=300, **more):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, n)
    return Predictions(confidence=confidence, correct=rng.random(n) < confidence, ids=range(n), **more)


def test_the_order_of_rows_does_not_matter_if_they_have_ids():
    a, b = model(0), model(1)
    expected = paired_comparison(a, b).differences
    order = np.random.default_rng(5).permutation(300)
    assert paired_comparison(a, b.take(order)).differences == expected
    with pytest.raises(InputError, match="expected names of the samples of both models"):
        paired_comparison(a, b.replaced(ids=None))


def test_rows_that_one_model_lacks_are_left_out_and_counted():
    a, b = model(0), model(1)
    gaps = paired_comparison(a.take(range(20, 300)), b.take(range(250)), measures=["accuracy"])
    assert (gaps.n, gaps.left_out) == (230, (50, 20))
    part = range(20, 250)
    assert (
        gaps.differences == paired_comparison(a.take(part), b.take(part), measures=["accuracy"]).differences
    )
    assert "left out, because only one model has them: 50 of this, 20 of the other" in gaps.to_table().notes


def test_an_id_may_repeat_only_within_a_unit():
    a, b = (Predictions(confidence=[0.9, 0.8, 0.7], correct=[1, 0, 1], ids=["x", "x", "y"]) for _ in "ab")
    with pytest.raises(
        InputError, match="got the same in rows 0 and 1; say what such rows belong to with units="
    ):
        paired_comparison(a, b)
    a, b = (each.replaced(units=each.ids) for each in (a, b))
    ours, theirs = matched(a, b.take([2, 1, 0]))
    assert ours.confidence.tolist() == [0.9, 0.8, 0.7]
    assert theirs.confidence.tolist() == [0.8, 0.9, 0.7]  # the first answer to x, then the second
    ours, theirs = matched(a, b.take([1, 2]))
    assert ours.confidence.tolist() == [0.9, 0.7]


def test_models_without_a_common_row_are_refused():
    with pytest.raises(InputError, match="expected at least two samples that both models have, got 0"):
        matched(model(0), model(1).replaced(ids=range(300, 600)))


def test_other_units_are_refused():
    a, b = (model(seed, units=np.arange(300) // 3) for seed in (0, 1))
    assert paired_comparison(a, b).n_units == 100
    with pytest.raises(InputError, match="units: expected the same samples in the same order, got other"):
        paired_comparison(a, b.replaced(units=np.arange(300) // 2))
    # Those of one count for both.
    alone = paired_comparison(a, b.replaced(units=None), measures=["accuracy"])
    assert alone.differences == paired_comparison(a, b, measures=["accuracy"]).differences


def test_each_two_models_are_compared_and_corrected_for_their_number():
    models = {"a": model(0), "b": model(1).take(range(200)), "c": model(2)}
    found = compare_models(models, measures=["accuracy", "brier"])
    assert list(found.pairs) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found.pairs["a", "b"].n == 200
    assert found.pairs["a", "c"].differences == (
        paired_comparison(models["a"], models["c"], measures=["accuracy", "brier"]).differences
    )
    p = sorted(each.differences["accuracy"].p_value for each in found.pairs.values())
    smallest = min(found.p_corrected["accuracy"].values())
    assert smallest == pytest.approx(min(1.0, 3 * p[0]))
    plain = found.to_dict()
    assert (
        plain["pairs"][0]["differences"]["accuracy"]["p_corrected"] == found.p_corrected["accuracy"]["a", "b"]
    )
    assert "a - b: on the same 200 samples; left out: 100 of a, 0 of b" in found.tables[0].notes
    with pytest.raises(InputError, match="models: expected at least two, got 1"):
        compare_models({"a": models["a"]})


def test_a_long_table_is_split_into_its_models():
    long = Predictions(confidence=[0.9, 0.8, 0.7], correct=[1, 0, 1], groups=["b", "a", "b"], ids=[1, 1, 2])
    parts = split_by_group(long)
    assert {name: each.confidence.tolist() for name, each in parts.items()} == {"a": [0.8], "b": [0.9, 0.7]}
