"""A pool: the likeliest mixture of held-out predictions, with a uniform share, a temperature and a curve."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from calibrant import Predictions
from calibrant.errors import FitError, InputError
from calibrant.evaluation import compare
from calibrant.integrations.sklearn import CalibratedClassifier
from calibrant.metrics import negative_log_likelihood, smooth_ece
from calibrant.posthoc import (
    SMART,
    Calibrator,
    EnsembleTemperatureScaling,
    HistogramBinning,
    Identity,
    IsotonicCalibration,
    Pool,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
)
from calibrant.posthoc.files import describe, restore
from calibrant.posthoc.fitting.score_map import own_answers
from calibrant.posthoc.mean_temperature import MeanTemperature
from calibrant.posthoc.names import METHODS, method_named
from calibrant.posthoc.pool import _trust, likeliest_mixture
from calibrant.solvers import likeliest_shares
from tests.conftest import draw, softmax
from tests.rounding import assert_equal_up_to_rounding

METHODS_OF_POOL = ["temperature", "smart(settled=0.5)", "vector", "beta"]


def skewed(n, *, seed=0, sharpen=2.0):
    """Overconfident logits with a bias for some classes: no simple method repairs both alone."""
    logits, labels = draw(n, 4, seed=seed, sharpen=sharpen)
    return logits + np.array([1.0, 0.0, -0.5, 0.0]), labels


def with_features(n, *, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 6)).astype(np.float32)
    logits = features @ np.random.default_rng(99).normal(size=(6, 4)).astype(np.float32)
    labels = (softmax(logits).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return 2 * logits, labels, features


def held_out_log_probs(methods, n=1500, n_new=1500):
    """Log-probabilities of new samples by fits of each method, and the labels."""
    fitted = [method.fit(*skewed(n)) for method in methods]
    logits, labels = skewed(n_new, seed=1)
    return [each.predict_log_proba(torch.tensor(logits)) for each in fitted], torch.tensor(labels)


@pytest.fixture
def no_curve(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.pool._follow_with_curve", lambda *_, **__: None)


@pytest.fixture(scope="module")
def pool():
    return Pool.fit(*skewed(1200), methods=METHODS_OF_POOL)


def test_the_output_is_the_mixture(pool):
    logits = skewed(200, seed=2)[0]
    weights, eps, temperature = pool.weights, float(pool.smoothing), float(pool.temperature)
    assert len(weights) > 1
    mixed = np.zeros_like(logits)
    for name, member in pool.members.items():
        mixed += weights[name] * np.asarray(member.predict_proba(logits))
    mixed = ((1 - eps) * mixed + eps / 4) ** (1 / temperature)
    mixed = torch.log(torch.tensor(mixed / mixed.sum(axis=1, keepdims=True)))
    np.testing.assert_allclose(pool.predict_proba(logits), pool.curve(mixed).exp(), atol=1e-9)


def test_members_stand_by_their_shares_which_sum_to_one(pool):
    shares = list(pool.weights.values())
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0, abs=1e-12)
    assert list(pool.members) == list(pool.weights) == pool.names
    assert set(pool.names) <= set(METHODS_OF_POOL)
    assert float(pool.smoothing) == pytest.approx(1 / 1201)


@pytest.mark.usefixtures("no_curve")
def test_a_method_and_its_copy_are_that_method_up_to_smoothing_and_temperature(tmp_path):
    logits, labels = skewed(1500)
    member = VectorScaling.fit(logits, labels)
    log_probs = member.predict_log_proba(torch.tensor(logits))
    copies, _ = Pool.of(
        {"one": member, "two": member}, [log_probs, log_probs], torch.tensor(labels), torch.arange(1500) % 5
    )
    assert sum(copies.weights.values()) == pytest.approx(1.0)
    mixed = (1 - 1 / 1501) * log_probs.exp() + 1 / (1501 * 4)
    expected = torch.log_softmax(mixed.log() / float(copies.temperature), dim=1)
    torch.testing.assert_close(copies(torch.tensor(logits)), expected, rtol=1e-9, atol=1e-9)
    assert float(copies.temperature) == pytest.approx(1.0, abs=0.02)
    copies.save(tmp_path / "copies.safetensors")
    assert Pool.load(tmp_path / "copies.safetensors").weights == copies.weights


def test_no_member_and_no_other_mixture_is_likelier_on_held_out_samples():
    log_probs, y = held_out_log_probs([TemperatureScaling, VectorScaling, SMART, IsotonicCalibration])
    of_labels = torch.stack([each[torch.arange(len(y)), y] for each in log_probs], dim=1).exp().numpy()
    mixture = likeliest_mixture(log_probs, y)
    best = negative_log_likelihood(logits=mixture(log_probs, torch.arange(len(y))), labels=y)
    rng = np.random.default_rng(0)
    others = [*np.eye(4), *rng.dirichlet(np.ones(4), size=100), *rng.dirichlet(np.full(4, 0.2), size=100)]
    # The uniform share costs at most about 1/n, and a share that is left out less than that here.
    assert best <= min(-np.log(of_labels @ shares).mean() for shares in others) + 2 / len(y)
    assert best < min(-np.log(of_labels).mean(axis=0)) - 1e-3
    assert sum(share > 0 for share in mixture.shares) > 1


@pytest.mark.parametrize(("n", "is_evident"), [(1500, True), (40, False)])
def test_the_temperature_is_the_likeliest_of_the_mixture_drawn_to_one_by_its_uncertainty(n, is_evident):
    log_probs, y = held_out_log_probs([TemperatureScaling, VectorScaling], n_new=n)
    log_probs = [torch.log_softmax(each / (1.3 if is_evident else 1.02), dim=1) for each in log_probs]
    mixture = likeliest_mixture(log_probs, y)
    mixed = (1 - mixture.smoothing) * sum(
        share * each.exp() for share, each in zip(mixture.shares, log_probs, strict=True)
    ) + mixture.smoothing / 4
    scores = mixed.double().log()

    def loss(log_temperature):
        return float(
            torch.nn.functional.cross_entropy(scores / math.exp(log_temperature), y, reduction="sum")
        )

    grid = np.linspace(-1, 1, 4001)
    best = grid[np.argmin([loss(each) for each in grid])]
    # The second derivative by differences is the information.
    information = (loss(best + 0.01) - 2 * loss(best) + loss(best - 0.01)) / 0.01**2
    expected = max(0.0, 1 - 1 / (information * best**2)) * best
    assert math.log(mixture.temperature) == pytest.approx(expected, abs=2e-3)
    assert (mixture.temperature != 1) == is_evident


def two_members(n, *, worse, seed=0):
    """Held-out log-probabilities of temperature scaling, and of a copy that is a little worse or better."""
    rng = np.random.default_rng(seed)
    logits, labels = draw(n, 4, seed=seed)
    shift = np.where(np.arange(4) == labels[:, None], -worse, 0) + rng.normal(scale=0.5, size=(n, 4))
    log_probs = [torch.log_softmax(torch.tensor(each), dim=1) for each in (logits, logits + shift)]
    return log_probs, torch.tensor(labels), torch.tensor(rng.permutation(n) % 5)


@pytest.mark.usefixtures("no_curve")
@pytest.mark.parametrize("worse", [-0.6, 0.0, 0.05, 1.0])
@pytest.mark.parametrize("name", ["temperature", "other"])
def test_a_pool_is_drawn_back_to_temperature_scaling_by_the_chance_that_it_is_no_better(worse, name):
    log_probs, labels, folds = two_members(120, worse=worse)
    members = {name: TemperatureScaling(1.0, n_classes=4), "b": Identity(n_classes=4)}
    pool, predicted = Pool.of(members, log_probs, labels, folds)
    rows, n = torch.arange(120), 120
    plain = torch.empty_like(predicted)
    for fold in range(5):
        rest, inside = (folds != fold).nonzero()[:, 0], (folds == fold).nonzero()[:, 0]
        plain[inside] = likeliest_mixture(log_probs, labels, rest)(log_probs, inside)
    gains = (plain - log_probs[0])[rows, labels].double().numpy()
    whole = likeliest_mixture(log_probs, labels)
    if name == "other":
        expected, trusted = plain, 1.0
    else:
        z = gains.mean() / (gains.std() / math.sqrt(n))
        trusted = 0.0 if z < -1 else 1.0 if norm.cdf(z) > 0.98 else norm.cdf(z)
        expected = None
    first = 1 - trusted + trusted * whole.shares[0]
    assert pool.weights.get(name, 0.0) == pytest.approx(first)
    assert math.log(pool.temperature) == pytest.approx(trusted * math.log(whole.temperature))
    assert float(pool.smoothing) == whole.smoothing
    if expected is not None:
        torch.testing.assert_close(predicted, expected)


def test_the_cases_above_are_trusted_wholly_in_part_and_not_at_all():
    shares = []
    for worse in (-0.6, 0.0, 0.05, 1.0):
        log_probs, labels, folds = two_members(120, worse=worse)
        members = {"temperature": TemperatureScaling(1.0, n_classes=4), "b": Identity(n_classes=4)}
        shares.append(Pool.of(members, log_probs, labels, folds)[0].weights.get("temperature", 0.0))
    assert shares[0] == 0
    assert 0.02 < shares[1] < shares[2] < 0.98
    assert shares[3] == 1


@pytest.mark.parametrize(
    ("z", "trusted"), [(-1.05, 0.0), (-0.95, norm.cdf(-0.95)), (0.0, 0.5), (2.0, norm.cdf(2.0)), (2.1, 1.0)]
)
def test_a_gain_is_trusted_by_its_standard_errors(z, trusted):
    noise = torch.linspace(-1, 1, 101, dtype=torch.float64)
    gains = noise + z * noise.std(correction=0) / math.sqrt(101)
    assert _trust(gains) == pytest.approx(trusted, abs=1e-9)
    # With weights, the standard error is that of the sum of weighted differences from the mean.
    w = torch.linspace(1, 3, 101, dtype=torch.float64)
    centred = noise - (w * noise).sum() / w.sum()
    error = (w * centred).square().sum().sqrt() / w.sum()
    assert _trust(centred + z * error, w) == pytest.approx(trusted, abs=1e-9)


# ---- the curve that follows the mixture


def bent(n, *, seed=0, k=4):
    """Logits that are overconfident where the margin is large only, which one temperature cannot repair."""
    logits, labels = draw(n, k, seed=seed, sharpen=1.0)
    top = np.sort(logits, axis=1)
    margin = (top[:, -1] - top[:, -2])[:, None]
    return torch.tensor(logits * (1 + margin)), torch.tensor(labels)


def pool_of_temperatures(n, k=4):
    """A pool of two temperatures, its parts, and what it predicts out of fold."""
    logits, labels = bent(n, k=k)
    members = {"temperature": TemperatureScaling(2.0, n_classes=k), "b": TemperatureScaling(4.0, n_classes=k)}
    held_out = [member(logits) for member in members.values()]
    folds = torch.arange(n) % 5
    return *Pool.of(members, held_out, labels, folds), held_out, labels, folds


def test_a_curve_follows_where_the_confidence_of_the_mixture_depends_on_the_margin(monkeypatch):
    with_curve, predicted, _, labels, _ = pool_of_temperatures(2000)
    assert with_curve.has_curve
    monkeypatch.setattr("calibrant.posthoc.pool._follow_with_curve", lambda *_, **__: None)
    without, flat, *_ = pool_of_temperatures(2000)
    assert not without.has_curve
    assert without.weights == with_curve.weights
    logits, new = bent(5000, seed=1)
    for after, before, y in ((with_curve(logits), without(logits), new), (predicted, flat, labels)):
        assert smooth_ece(after.exp(), y) < 0.7 * smooth_ece(before.exp(), y)
        assert negative_log_likelihood(logits=after, labels=y) < negative_log_likelihood(
            logits=before, labels=y
        )
    assert torch.equal(with_curve(logits).argmax(dim=1), without(logits).argmax(dim=1))
    torch.testing.assert_close(with_curve(logits), with_curve.curve(without(logits)))


@pytest.mark.parametrize("n", [100, 2000])
def test_the_curve_is_fitted_to_what_the_mixture_predicts_out_of_fold(n):
    pool, predicted, held_out, labels, folds = pool_of_temperatures(n)
    rows, mixed = torch.arange(n), torch.empty_like(predicted)
    plain = torch.empty_like(predicted)
    for fold in range(5):
        rest, inside = rows[folds != fold], rows[folds == fold]
        plain[inside] = likeliest_mixture(held_out, labels, rest)(held_out, inside)
    gains = (plain - held_out[0])[rows, labels].double()
    mixtures = {
        fold: likeliest_mixture(held_out, labels, rows[folds != fold]).drawn_back(
            0, _trust(gains[folds != fold])
        )
        for fold in range(5)
    }
    for fold in range(5):
        mixed[folds == fold] = mixtures[fold](held_out, rows[folds == fold])
    whole = MeanTemperature.fit(mixed, labels)
    new = torch.log_softmax(bent(50, seed=2)[0], dim=1)
    torch.testing.assert_close(pool.curve(new), whole(new))
    for fold in range(5):
        rest = rows[folds != fold]
        curve = MeanTemperature.fit(mixtures[fold](held_out, rest), labels[rest], **whole.for_folds)
        torch.testing.assert_close(predicted[folds == fold], curve(mixed[folds == fold]))


def test_two_classes_have_no_curve_and_a_pool_that_is_not_trusted_has_one(monkeypatch):
    two, *_ = pool_of_temperatures(2000, k=2)
    assert not two.has_curve
    monkeypatch.setattr("calibrant.posthoc.pool._trust", lambda *_, **__: 0.0)
    untrusted, *_ = pool_of_temperatures(2000)
    assert untrusted.weights == {"temperature": 1.0}
    assert untrusted.has_curve


def test_a_curve_that_cannot_be_fitted_is_left_out(monkeypatch):
    def refuse(*_, **__):
        raise FitError("no luck")

    monkeypatch.setattr(MeanTemperature, "fit", refuse)
    pool, predicted, *_ = pool_of_temperatures(300)
    assert not pool.has_curve
    assert predicted.isfinite().all()


def test_a_curve_that_cannot_be_fitted_without_a_fold_changes_no_prediction(monkeypatch):
    fit, calls = MeanTemperature.fit, []

    def refuse_the_third(*given, **options):
        calls.append(1)
        if len(calls) == 3:
            raise FitError("no luck")
        return fit(*given, **options)

    monkeypatch.setattr(MeanTemperature, "fit", refuse_the_third)
    pool, predicted, *_ = pool_of_temperatures(300)
    monkeypatch.setattr("calibrant.posthoc.pool._follow_with_curve", lambda *_, **__: None)
    assert not pool.has_curve
    assert_equal_up_to_rounding(predicted, pool_of_temperatures(300)[1])


def test_many_samples_are_thinned_evenly_for_the_curve(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.pool._MOST_FOR_CURVE", 600)
    sizes, fit = [], MeanTemperature.fit

    def counted(logits, labels, **options):
        sizes.append(len(logits))
        return fit(logits, labels, **options)

    monkeypatch.setattr(MeanTemperature, "fit", counted)
    pool, *_ = pool_of_temperatures(2000)
    assert pool.has_curve
    assert sizes == [500] + [534] * 5


def test_a_pool_with_a_curve_is_saved_and_one_of_an_earlier_version_has_none(tmp_path):
    made, *_ = pool_of_temperatures(2000)
    made.save(tmp_path / "pool.safetensors")
    loaded = load_calibrator(tmp_path / "pool.safetensors")
    logits = bent(50, seed=3)[0]
    assert loaded.has_curve
    assert_equal_up_to_rounding(loaded(logits), made(logits))
    table = describe(Pool(made.members, made.shares.tolist()))
    del table["options"]["has_curve"]
    state = Pool(made.members, made.shares.tolist()).state_dict()
    assert not restore(table, dict(state)).has_curve


def test_weights_of_a_mixture_count_like_repeated_rows():
    log_probs, labels = held_out_log_probs([TemperatureScaling, VectorScaling], n=300, n_new=300)
    counts = torch.randint(1, 4, (300,), generator=torch.Generator().manual_seed(0))
    mixture = likeliest_mixture(log_probs, labels, weights=counts.double())
    rows = torch.arange(300).repeat_interleave(counts)
    assert mixture.shares == pytest.approx(likeliest_mixture(log_probs, labels, rows).shares, abs=1e-6)
    effective = float(counts.sum()) ** 2 / float(counts.square().sum())
    assert mixture.smoothing == pytest.approx(1 / (effective + 1))


def test_a_pool_refuses_named_members_that_cannot_take_weights():
    logits, labels = skewed(60)
    weights = np.arange(60) + 1.0
    fitted = Pool.fit(logits, labels, methods=["temperature", "vector"], weights=weights)
    assert set(fitted.names) <= {"temperature", "vector"}
    with pytest.raises(InputError, match="^weights: expected none for venn_abers"):
        Pool.fit(logits, labels, methods=["temperature", "venn_abers"], weights=weights)


def test_small_shares_are_dropped_and_the_others_found_again():
    # Of 1000 samples only the last distribution explains the first ten, and no others.
    rng = np.random.default_rng(0)
    of_labels = rng.uniform(0.4, 0.9, size=(1000, 3))
    of_labels[:, 2] = 0.01
    of_labels[:10] = [1e-4, 1e-4, 0.9]
    log_probs = [torch.tensor(np.stack([p, 1 - p], axis=1)).log() for p in of_labels.T]
    labels = torch.zeros(1000, dtype=torch.int64)
    assert 0.005 < likeliest_shares(of_labels)[2] < 0.02
    shares = likeliest_mixture(log_probs, labels).shares
    assert shares[2] == 0
    assert shares[:2] == pytest.approx(likeliest_shares(of_labels[:, :2]).tolist(), abs=1e-9)
    fitted = {name: TemperatureScaling(1.0, n_classes=2) for name in "abc"}
    assert set(Pool.of(fitted, log_probs, labels, torch.arange(1000) % 5)[0].names) == {"a", "b"}


def test_many_equal_members_with_less_than_two_per_cent_each_leave_a_pool():
    log_probs, y = held_out_log_probs([TemperatureScaling], n=300, n_new=300)
    shares = likeliest_mixture(log_probs * 80, y).shares
    assert sum(shares) == pytest.approx(1.0)
    assert max(shares) > 0


KEEPING = {
    "temperature": TemperatureScaling(2.0),
    "sharper": TemperatureScaling(0.6),
    "smart": SMART.fit(*skewed(400)),
    "ensemble": EnsembleTemperatureScaling.fit(*skewed(400)),
    "isotonic": IsotonicCalibration.fit(*skewed(400), mode="top_label"),
}
KEEPS_ACCURACY = Pool(KEEPING, [0.3, 0.2, 0.2, 0.15, 0.15], smoothing=1e-3, temperature=0.8)


@settings(max_examples=150)
@given(
    st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
        lambda kind: arrays(
            np.float16, (7, 4), elements=st.floats(-20, 20, width=16, allow_subnormal=False)
        ).map(lambda logits: logits.astype(kind))
    )
)
def test_the_predicted_class_never_changes_if_no_member_can_change_it(logits):
    members = [member.predict_log_proba(logits).argmax(dim=1).numpy() for member in KEEPING.values()]
    kept = np.all([each == logits.argmax(axis=1) for each in members], axis=0)
    predicted = KEEPS_ACCURACY.predict_log_proba(logits).argmax(dim=1).numpy()
    assert (predicted == logits.argmax(axis=1))[kept].all()


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_many_random_and_tied_logits_keep_their_class(kind):
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(20_000, 4)) * 3).astype(kind)
    logits[::3] = np.round(logits[::3])
    logits[:50] = 1.5
    predicted = KEEPS_ACCURACY.predict_log_proba(logits).argmax(dim=1).numpy()
    assert (predicted == logits.argmax(axis=1)).all()


def test_a_pool_keeps_the_class_if_all_members_do_and_needs_features_if_any_does(tmp_path):
    logits, labels, features = with_features(300)
    by_features = METHODS["feature_clipping"].fit(logits, labels, features=features)
    vector = VectorScaling.fit(logits, labels)
    cases = [
        (KEEPS_ACCURACY, True, False),
        (Pool({"temperature": TemperatureScaling(2.0), "vector": vector}, [0.5, 0.5]), False, False),
        (Pool({"temperature": TemperatureScaling(2.0), "by_features": by_features}, [0.5, 0.5]), False, True),
    ]
    for made, keeps, needs in cases:
        made.save(tmp_path / "pool.safetensors")
        for each in (made, load_calibrator(tmp_path / "pool.safetensors")):
            assert (each.preserves_accuracy, each.needs_features) == (keeps, needs)
    with pytest.raises(InputError, match="^features: expected penultimate features"):
        cases[2][0].predict_proba(logits)


def test_what_is_loaded_is_what_was_saved_with_options_in_the_names(tmp_path):
    names = ["temperature(prior=0.5)", "vector", "smart(settled=0.5)", "smart(settled=2.0)"]
    members = {name: method_named(name).fit(*skewed(300)) for name in names}
    made = Pool(members, [0.1, 0.2, 0.3, 0.4], smoothing=0.01, temperature=0.9)
    made.save(tmp_path / "pool.safetensors")
    loaded = Pool.load(tmp_path / "pool.safetensors")
    assert loaded.weights == made.weights == dict(zip(reversed(names), [0.4, 0.3, 0.2, 0.1], strict=True))
    assert [type(each) for each in loaded.members.values()] == [
        SMART,
        SMART,
        VectorScaling,
        TemperatureScaling,
    ]
    logits = torch.tensor(skewed(50, seed=3)[0])
    assert_equal_up_to_rounding(loaded(logits), made(logits))


def test_more_than_ten_members_keep_their_order_in_a_file(tmp_path):
    members = {f"temperature {t}": TemperatureScaling(float(t), n_classes=3) for t in range(1, 13)}
    made = Pool(members, [1 / 12] * 12)
    made.save(tmp_path / "pool.safetensors")
    found = {
        name: float(each.temperature)
        for name, each in Pool.load(tmp_path / "pool.safetensors").members.items()
    }
    assert found == {f"temperature {t}": t for t in range(1, 13)}


def test_a_pool_is_a_module(pool):
    logits = torch.tensor(skewed(20, seed=3)[0])
    before = pool(logits)
    state = {name: value.clone() for name, value in pool.state_dict().items()}
    assert {"shares", "smoothing", "temperature"} < set(state)
    assert any(name.startswith("member_1.") for name in state)
    other = Pool.fit(*skewed(1200), methods=METHODS_OF_POOL)
    with torch.no_grad():
        for buffer in other.buffers():
            buffer.zero_()
    other.load_state_dict(state)
    assert_equal_up_to_rounding(other(logits), before)
    single = other.to(dtype=torch.float32).to(device="cpu")
    assert {buffer.dtype for buffer in single.buffers() if buffer.is_floating_point()} == {torch.float32}
    torch.testing.assert_close(single(logits.float()), before.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(["temperature", "smart", "vector"], marks=pytest.mark.long),
        ["temperature", "feature_clipping"],
    ],
)
def test_a_pool_is_one_graph_with_features_if_a_member_needs_them(methods, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from calibrant.integrations.onnx import export_onnx

    logits, labels, features = with_features(400)
    fitted = [METHODS[name].fit(logits, labels, features=features) for name in methods]
    made = Pool(
        dict(zip(methods, fitted, strict=True)),
        np.arange(1, 1 + len(methods)).tolist(),
        smoothing=0.01,
        curve=SMART.fit(*bent(400)),
    )
    export_onnx(made, tmp_path / "pool.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "pool.onnx", providers=["CPUExecutionProvider"])
    needs_features = "feature_clipping" in methods
    names = [each.name for each in session.get_inputs()]
    assert names == (["logits", "features"] if needs_features else ["logits"])
    fed = {"logits": logits} | ({"features": features} if needs_features else {})
    probs = made.predict_proba(logits, features if needs_features else None)
    assert np.exp(session.run(["log_probs"], fed)[0]) == pytest.approx(probs, abs=1e-5)


@pytest.mark.parametrize("method", ["pool", Pool])
def test_a_classifier_of_scikit_learn_takes_a_pool(method):
    x, y = make_classification(600, n_features=8, flip_y=0.1, random_state=0)
    classifier = CalibratedClassifier(
        LogisticRegression(C=100), method=method, options={"methods": ["temperature", "beta"]}, cv=3
    ).fit(x, y)
    assert isinstance(classifier.calibrator_, Pool)
    assert set(classifier.calibrator_.names) <= {"temperature", "beta"}
    probs = classifier.predict_proba(x)
    assert probs.shape == (600, 2)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_equal_seeds_give_equal_pools_and_others_other_folds(pool):
    again, other = (Pool.fit(*skewed(1200), methods=METHODS_OF_POOL, seed=seed) for seed in (0, 1))
    assert again.weights == pool.weights
    assert torch.equal(again.temperature, pool.temperature)
    assert other.weights != pool.weights


def test_the_pool_is_that_of_a_comparison(pool):
    logits, labels = skewed(1200)
    compared = compare(
        Predictions(logits=logits, labels=labels),
        methods=[*METHODS_OF_POOL, "pool"],
        n_folds=5,
        n_resamples=20,
    )
    assert compared.pool.weights == pytest.approx(pool.weights, abs=1e-6)
    assert float(compared.pool.temperature) == pytest.approx(float(pool.temperature), abs=1e-6)
    assert float(compared.pool.smoothing) == float(pool.smoothing)
    new = skewed(50, seed=5)[0]
    np.testing.assert_allclose(compared.pool.predict_proba(new), pool.predict_proba(new), atol=1e-6)


def test_features_reach_the_members_in_every_fold():
    logits, labels, features = with_features(400)
    made = Pool.fit(logits, labels, methods=["temperature", "group", "feature_clipping"], features=features)
    predictions = Predictions(logits=logits, labels=labels, features=features)
    compared = compare(
        predictions, methods=["temperature", "group", "feature_clipping", "pool"], n_resamples=20
    )
    assert made.weights == pytest.approx(compared.pool.weights, abs=1e-6)


def test_one_method_alone_has_the_whole_share():
    alone = Pool.fit(*skewed(300), methods="temperature")
    assert alone.weights == {"temperature": 1.0}


def test_without_names_the_automatic_methods_are_pooled(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.names._AUTO", ("uncalibrated", "temperature", "pool"))
    for options in ({}, {"methods": "auto"}, {"methods": "pool"}, {"methods": ["pool"]}):
        assert set(Pool.fit(*skewed(200), **options).names) <= {"uncalibrated", "temperature"}


def test_a_method_that_cannot_be_fitted_is_left_out():
    logits, labels = skewed(200)
    left = Pool.fit(logits, labels, methods=["temperature", "proximity", "vector(ridge=-1)"])
    assert left.weights == {"temperature": 1.0}


def test_no_method_at_all_is_an_error_of_one_sentence():
    with pytest.raises(FitError) as refused:
        Pool.fit(*skewed(200), methods=["proximity", "vector(ridge=-1)"])
    message = str(refused.value)
    assert message.startswith("pool: no method could be fitted (vector(ridge=-1): ridge: expected")
    assert "proximity: features: expected" in message
    assert "\n" not in message


def test_a_bug_is_not_hidden_as_a_method_that_cannot_be_fitted(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(TemperatureScaling, "fit", broken)
    with pytest.raises(ZeroDivisionError):
        Pool.fit(*skewed(100), methods=["temperature", "uncalibrated"])


def test_bad_options_are_refused():
    with pytest.raises(InputError, match=r"^methods: expected .*, got 'alchemy'"):
        Pool.fit(*skewed(50), methods=["alchemy"])
    with pytest.raises(
        InputError, match=r"^logits: expected at least two samples, one to hold out, got one$"
    ):
        Pool.fit(*skewed(1))
    with pytest.raises(InputError, match=r"^units: expected two, one to hold out, got one$"):
        Pool.fit(*skewed(50), units=np.zeros(50, dtype=int))


@pytest.mark.parametrize("n", [2, 3, 9])
def test_fewer_samples_than_folds_are_enough(n):
    logits, labels = [[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]] * 3, [0, 1, 1] * 3
    made = Pool.fit(logits[:n], labels[:n], methods=["temperature", "uncalibrated"])
    assert np.isfinite(made.predict_proba(logits)).all()


def test_a_certain_mistake_on_new_data_has_a_bounded_loss():
    logits, labels = draw(500, 3, seed=1, spread=8.0)
    made = Pool.fit(logits, labels, methods=["uncalibrated", "temperature"])
    worst = float(made.predict_log_proba([[0.0, 500.0, -500.0]]).min())
    # The uniform share is 1 / 501, and each class has a third of it; the curve scales that a little.
    assert worst * float(made.temperature) >= -1.2 * math.log(3 * 501)


def test_half_precision_is_compared_and_pooled_too():
    logits, labels = skewed(400)
    half = Predictions(logits=logits.astype(np.float16), labels=labels)
    compared = compare(half, methods=["uncalibrated", "temperature", "pool"], n_resamples=20)
    assert compared.pool is not None
    assert compared["pool"].held_out.logits.dtype == torch.float32


def test_known_members_and_shares_make_a_pool_without_data():
    made = Pool({"a": TemperatureScaling(1.0, n_classes=3), "b": Identity(n_classes=3)}, [0.25, 0.75])
    assert isinstance(made, Calibrator)
    assert made.n_classes == 3
    assert made.weights == {"b": 0.75, "a": 0.25}
    np.testing.assert_allclose(made.predict_proba([[1.0, 2.0, 3.0]]), softmax(np.array([[1.0, 2.0, 3.0]])))


@pytest.mark.parametrize("mode", ["one_vs_rest", "top_label"])
def test_maps_that_ask_the_same_questions_share_the_answers_of_the_model(mode, monkeypatch):
    z, y = skewed(300)
    members = {
        "isotonic": IsotonicCalibration.fit(z, y, mode=mode),
        "temperature": TemperatureScaling(2.0),
        "histogram": HistogramBinning.fit(z, y, mode=mode),
    }
    asked = []

    def counted(logits, mode):
        asked.append(mode)
        return own_answers(logits, mode)

    monkeypatch.setattr("calibrant.posthoc.pool.own_answers", counted)
    found = Pool(members, [0.5, 0.2, 0.3]).predict_proba(z)
    alone = [member.predict_proba(z) for member in members.values()]
    np.testing.assert_allclose(found, np.tensordot([0.5, 0.2, 0.3], alone, axes=1), atol=1e-9)
    assert asked == [mode]
