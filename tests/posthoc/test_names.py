"""Methods by name, with options."""

import subprocess
import sys

import pytest

from calibrant.errors import InputError
from calibrant.posthoc import IsotonicCalibration
from calibrant.posthoc.names import METHODS, canonical_name, method_named, pool_members, resolve_methods
from tests.conftest import draw


def test_a_name_is_an_entry_of_the_catalogue():
    assert all(method_named(name) is method for name, method in METHODS.items())


def test_options_in_parentheses_are_merged_over_those_of_the_entry():
    method = method_named("isotonic(smoothing=0.5)")
    assert method.calibrator is IsotonicCalibration
    assert method.options == {"mode": "one_vs_rest", "smoothing": 0.5}
    assert method_named("temperature_ece(objective='nll')").options == {"objective": "nll"}
    assert METHODS["isotonic"].options == {"mode": "one_vs_rest"}


def test_options_reach_the_fit(overconfident):
    weak, strong = (method_named(f"vector(ridge={ridge})").fit(*overconfident) for ridge in (0.1, 1e6))
    assert float(strong.intercept.abs().max()) < float(weak.intercept.abs().max())


def test_names_have_one_form():
    assert canonical_name("smart") == canonical_name("smart()") == "smart"
    assert canonical_name(' isotonic( mode="top_label",smoothing = 0 )') == (
        "isotonic(mode='top_label', smoothing=0)"
    )


def test_a_misspelt_method_is_told_the_nearest():
    for name in ("temperatur", "temperatur(n_bins=5)"):
        with pytest.raises(InputError, match=r"^methods: expected .*, got 'temperatur'; did you mean"):
            method_named(name)
    with pytest.raises(InputError, match=r"got 'zzz'; known are uncalibrated, temperature, "):
        resolve_methods(["zzz"])


def test_an_unknown_option_is_told_those_that_exist():
    with pytest.raises(InputError) as refused:
        method_named("smart(setled=0)")
    assert str(refused.value) == (
        "methods: expected the options objective, indicator, strength, epochs, settled for smart, got "
        "'setled'; did you mean 'settled'?"
    )
    with pytest.raises(InputError, match=r"^methods: expected no options for ensemble, got 'settled'$"):
        method_named("ensemble(settled=0)")


@pytest.mark.parametrize("option", ["logits", "labels", "features", "seed"])
def test_what_every_fit_is_given_is_no_option(option):
    assert all(option not in method.option_names for method in METHODS.values())
    with pytest.raises(InputError, match=f"for group, got '{option}'"):
        method_named(f"group({option}=1)")


@pytest.mark.parametrize("text", ["smart(0)", "smart(settled=x)", "smart,vector", "smart(", ""])
def test_other_texts_are_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"^methods: expected .*such as 'smart\(settled=0\)', got "):
        resolve_methods([text])


def test_variants_stand_in_the_order_of_the_catalogue_then_as_given_and_once():
    given = ["vector", "smart(settled=2)", "smart", "temperature", "smart( settled=2 )", "smart(settled=0)"]
    assert resolve_methods(given) == [
        "temperature",
        "smart(settled=2)",
        "smart",
        "smart(settled=0)",
        "vector",
    ]
    assert resolve_methods("smart(settled = 0)") == ["smart(settled=0)"]


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        ("isotonic", False),
        ("isotonic(mode='top_label')", True),
        ("isotonic_top(smoothing=0)", True),
        ("isotonic_top(mode='one_vs_rest')", False),
        ("bbq(mode='one_vs_rest')", False),
        ("bbq(mode='top_label')", True),
        ("spline", True),
        ("spline(mode='one_vs_rest')", False),
        ("spline_classes", False),
        ("spline_classes(mode='top_label')", True),
        ("smart(settled=0)", True),
        ("vector(ridge=1)", False),
    ],
)
def test_options_decide_whether_the_predicted_class_is_kept(name, keeps):
    assert method_named(name).preserves_accuracy is keeps


def test_fast_means_the_quick_methods_however_many_classes():
    quick = ["uncalibrated", "temperature", "ensemble", "spline", "smart", "pool"]
    assert resolve_methods("auto", fast=True) == resolve_methods("auto", n_classes=999, fast=True) == quick
    with pytest.raises(InputError, match=r"^fast: expected auto as methods, got smart, vector; leave out"):
        resolve_methods(["smart", "vector"], fast=True)


def test_methods_that_change_the_predicted_class_can_be_left_out():
    keeping = [name for name in METHODS if METHODS[name].preserves_accuracy or name == "pool"]
    keeping.remove("parameterized_paper")  # takes minutes
    assert resolve_methods("all", keep_accuracy=True) == keeping != list(METHODS)
    for n_classes in (2, 10, 1000):
        kept = resolve_methods("auto", n_classes=n_classes, keep_accuracy=True)
        assert {"temperature", "smart", "pool"} < set(kept) < set(keeping)
        assert not set(resolve_methods("auto", n_classes=n_classes)) <= set(keeping)


@pytest.mark.parametrize("n_classes", [2, 10, 1000])
@pytest.mark.parametrize("keep_accuracy", [False, True])
def test_a_pool_mixes_the_methods_beside_it_or_the_automatic_ones(n_classes, keep_accuracy):
    options = {"n_classes": n_classes, "keep_accuracy": keep_accuracy}
    automatic = resolve_methods("auto", **options)
    assert automatic[-1] == "pool"
    for methods in ("pool", ["pool"], "auto"):
        assert pool_members(methods, **options) == automatic[:-1]
    beside = ["pool", "smart(settled=0.5)", "temperature"]
    assert pool_members(beside, **options) == ["temperature", "smart(settled=0.5)"]


def test_named_methods_that_change_the_predicted_class_are_refused():
    names = ["temperature", "vector", "isotonic(mode='top_label')"]
    with pytest.raises(InputError, match=r"^methods: expected methods that keep the .* class, got vector; "):
        resolve_methods(names, keep_accuracy=True)
    assert resolve_methods(names[::2], keep_accuracy=True) == names[::2]


def test_auto_and_all_stand_alone():
    with pytest.raises(InputError, match=r"^methods: expected names of methods, got 'auto'"):
        resolve_methods(["auto", "smart"])


def test_a_fitted_calibrator_shows_its_numbers_if_they_are_few_else_how_many_there_are():
    logits, labels = draw(200, 3, seed=0, sharpen=3.0)
    fitted = {name: METHODS[name].fit(logits, labels) for name in ("temperature", "ensemble", "matrix")}
    assert (
        repr(fitted["temperature"])
        == f"TemperatureScaling(temperature={fitted['temperature'].temperature:.4g})"
    )
    shares = ", ".join(f"{share:.4g}" for share in fitted["ensemble"].shares)
    assert repr(fitted["ensemble"]).endswith(f", shares=[{shares}])")
    assert repr(fitted["matrix"]) == "MatrixScaling(12 parameters)"
    assert repr(METHODS["isotonic"].fit(logits, labels)).startswith(
        "IsotonicCalibration(mode='one_vs_rest', "
    )


def test_a_method_that_is_added_before_the_table_is_read_comes_last_and_stays():
    code = (
        "from calibrant.posthoc.names import METHODS\n"
        "METHODS['mine'] = METHODS['temperature'] = 'another'\n"
        "print(list(METHODS)[-1], METHODS['temperature'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["mine", "another"]
