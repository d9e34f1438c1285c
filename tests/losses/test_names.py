"""The losses by name: the catalogue lists what the package offers, and recipes make it."""

import inspect
import typing

import pytest
import torch

from calibrant import losses
from calibrant.errors import InputError
from calibrant.losses import Loss
from calibrant.losses.loss import WeightedSum
from calibrant.losses.names import LOSSES, make_loss
from calibrant.losses.parts.confidence import confidence_score
from calibrant.metrics.scores import SCORES
from calibrant.outcomes import ProbabilityScore

SIZES = {"n_classes": 3, "n_samples": 10}
OWN = [name for name in LOSSES if hasattr(losses, f"{name}_loss")]

# What the papers print for the losses that have another default here.
PAPER = {
    "label_smoothing_seca": "LabelSmoothingLoss(smoothing=0.1)",
    "mmce_seca": "CrossEntropyLoss() + 4 * MMCELoss(width=0.2, weighted=False)",
    "kde_paper": "CrossEntropyLoss() + 0.3 * KDELoss(p=1.0, bandwidth=0.02, mode='canonical')",
    "selective_risk_paper": "SelectiveRiskLoss(score='msp', coverage=0.75, nu=0.1, weight_gradient=1.0, "
    "raw_scale=True, warmup=0)",
}


def test_every_loss_of_the_package_has_a_name():
    public = {
        value
        for name, value in vars(losses).items()
        if name in losses.__all__ and inspect.isclass(value) and issubclass(value, Loss)
    }
    assert {loss.module for loss in LOSSES.values()} == public - {Loss}


def test_a_name_without_a_function_is_a_variant_with_the_settings_of_a_paper():
    assert {name: repr(make_loss(name)) for name in LOSSES if name not in OWN} == PAPER
    assert all(not LOSSES[name].variant for name in OWN)


def test_an_option_of_a_variant_comes_on_top_of_the_settings_of_the_paper():
    made = make_loss("selective_risk_paper(warmup=20, coverage=0.8)")
    assert (made.warmup, made.coverage, made.score, made.weight_gradient) == (20, 0.8, "msp", 1.0)
    defaults = {option.name: option.default for option in LOSSES["selective_risk_paper"].options}
    assert (defaults["score"], defaults["nu"], defaults["warmup"]) == ("'msp'", "0.1", "0")


@pytest.mark.parametrize("name", OWN)
def test_the_name_is_that_of_the_function_and_both_say_what_they_mean(name):
    function = getattr(losses, f"{name}_loss")
    assert f"{name}_loss" in losses.__all__
    for documented in (function, LOSSES[name].module):
        assert inspect.getdoc(documented).partition("\n")[0].endswith(".")
    assert ".. math::" in inspect.getdoc(function)
    assert LOSSES[name].module.function is function


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_each_of_its_options_have_a_meaning(name):
    assert LOSSES[name].meaning.endswith(".")
    signature = inspect.signature(LOSSES[name].module)
    assert [option.name for option in LOSSES[name].options] == list(signature.parameters)
    assert all(option.meaning.endswith(".") for option in LOSSES[name].options)


@pytest.mark.parametrize("name", LOSSES)
def test_a_bare_name_means_its_recipe(name):
    made = make_loss(name, **SIZES)
    assert repr(made) == repr(make_loss(LOSSES[name].recipe, **SIZES))
    assert LOSSES[name].module.__name__ in repr(made)


@pytest.mark.parametrize("name", LOSSES)
def test_a_term_stands_beside_a_loss_that_classifies(name):
    made = make_loss(name, **SIZES)
    assert isinstance(made, WeightedSum) == ("+" in LOSSES[name].recipe)
    if "+" in LOSSES[name].recipe:
        assert type(made.terms[0]).__name__ in ("CrossEntropyLoss", "FocalLoss")


@pytest.mark.parametrize("name", [name for name in OWN if "+" not in LOSSES[name].recipe])
def test_the_recipe_of_what_is_no_term_is_the_module_with_its_defaults(name):
    loss = LOSSES[name]
    assert repr(make_loss(name, **SIZES)) == repr(loss.module(**{size: SIZES[size] for size in loss.sizes}))


def test_a_name_within_a_sum_is_the_term_alone():
    assert (
        repr(make_loss("focal + 2 * mmce"))
        == "FocalLoss(gamma=3.0) + 2 * MMCELoss(width=0.2, weighted=False)"
    )


@pytest.mark.parametrize(("name", "size"), [("ols", "n_classes"), ("crl", "n_samples")])
def test_a_loss_that_keeps_something_of_each_must_be_told_how_many(name, size):
    with pytest.raises(
        InputError, match=f"^loss: {name} needs {size}; pass it as an argument, e.g. make_loss"
    ):
        make_loss(name)
    assert f"{size}={SIZES[size]}" in repr(make_loss(name, **SIZES))
    assert f"{size}=7" in repr(make_loss(f"{name}({size}=7)", **SIZES))


def test_a_name_may_have_spaces_around_it():
    assert repr(make_loss("  mdca ")) == "FocalLoss(gamma=1.0) + MDCALoss()"


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(InputError, match=r"^loss: .* got 'adafocl'; did you mean 'adafocal'\?$"):
        make_loss("adafocl")


def test_losses_and_metrics_have_one_vocabulary_of_scores():
    assert set(typing.get_args(ProbabilityScore)) == {
        name for name in SCORES if SCORES[name].reads == "probs"
    }


@pytest.mark.parametrize(
    ("former", "name"), [("margin", "softmax_margin"), ("neg_entropy", "negative_entropy")]
)
def test_former_names_of_scores_in_configurations_still_work(former, name):
    log_p = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).log_softmax(dim=1)
    assert torch.equal(confidence_score(log_p, former), confidence_score(log_p, name))
