"""The papers' figures: complete, in range, under known names, and equal to what the papers print."""

import csv
import math
from collections import Counter
from dataclasses import fields
from importlib.resources import files

import pytest

from calibrant.errors import InputError
from calibrant.losses.names import LOSSES
from calibrant.metrics.names import MEASURES
from calibrant.papers.printed import PAPERS, UNITS, PaperFigure, paper_figures
from calibrant.posthoc.names import METHODS

# What the papers report and we do not offer under one name.
OTHER_METHODS = {"", "pretrained", "refcal", "refcal+cross_entropy"}
OTHER_POSTHOC = {""}
OTHER_MEASURES = {
    "error",
    "sce",
    "printed_ace",  # RefCal's ACE, undefined in what we have of it; ours of that name is another measure
    "auroc",
    "refinement",
    "ood_auroc",
    "temperature",
    "runtime",
    "training_time",
    # Settings of the experiments.
    "classes",
    "learning_rate",
    "batch_size",
    "epochs",
    "gamma",
    "low_confidence_coverage",
}

# Rows times columns as printed; a number in brackets beside another is one more figure.
SIZES = {
    "smart": {
        "1": 26 * 9,
        "2": 8 * 12,
        "3": 6 * 6 + 2,
        "4": 5 * 6,
        "5": 5,
        "6": 26 * 9,
        "7": 26 * 6,
        "8": 26 * 6,
        "9": 8 * 12,
        "10": 8 * 12,
        "11": 8 * 12,
        "12": 8 * 12,
        "13": 5 * 4,
        "14": 5 * 4,
    },
    "seca": {
        "1": 12 * 16,
        "2": 12 * 6,
        "3": 12 * 16,
        "4": 9 * 4,
        "5": 12 * (8 + 4),
        "6": 12 * 8,
        "7": 12 * 3,
    },
    "selective_risk": {
        "1": 10 * 7 * (2 + 1),
        "2": 10 * 14,
        "appendix 2": 2 * 10,
        "appendix 3": 10,
        "appendix 4": 10 * 7 * (4 * 2 + 1),
    },
    "adafocal": {"1": 15 * (12 + 6), "2": 15 * 6},
    "refcal": {"abstract": 2 * 3, "fragment": 2 * 6},
}


def values(paper, table, **where):
    """Figures of a table by everything that tells them apart but the note."""
    return {
        (f.dataset, f.model, f.method, f.posthoc, f.measure): f.value
        for f in paper_figures(paper, table=table, **where)
    }


@pytest.mark.parametrize("paper", PAPERS)
def test_every_file_has_the_columns_of_a_figure_and_names_its_paper(paper):
    text = (files("calibrant.papers.printed") / f"{paper}.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(text.splitlines()))
    assert sorted(rows[0]) == sorted(field.name for field in fields(PaperFigure))
    assert {len(row) for row in rows} == {11}
    assert {row[0] for row in rows[1:]} == {paper}
    assert len(paper_figures(paper)) == len(rows) - 1


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_has_as_many_figures_as_are_printed(paper):
    assert Counter(figure.table for figure in paper_figures(paper)) == SIZES[paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_numbers_are_finite_and_shares_are_shares(paper):
    for figure in paper_figures(paper):
        assert math.isfinite(figure.value), figure
        assert figure.value >= 0, figure
        assert figure.std is None or (math.isfinite(figure.std) and figure.std >= 0), figure
        if figure.unit == "percent":
            assert figure.value <= 100, figure
        if figure.unit == "fraction":
            assert figure.value <= 1, figure


@pytest.mark.parametrize("paper", PAPERS)
def test_no_figure_is_told_twice(paper):
    keys = Counter(
        (f.table, f.dataset, f.model, f.method, f.posthoc, f.measure, f.note) for f in paper_figures(paper)
    )
    assert [key for key, n in keys.items() if n > 1] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_names_are_ours_or_listed_as_not_ours(paper):
    figures = paper_figures(paper)
    assert {f.method for f in figures} <= LOSSES.keys() | OTHER_METHODS
    assert {f.posthoc for f in figures} <= METHODS.keys() | OTHER_POSTHOC
    assert {f.measure for f in figures} <= MEASURES.keys() | OTHER_MEASURES
    assert {f.unit for f in figures} <= UNITS.keys()


def test_what_is_listed_as_not_ours_is_not_ours_and_is_used():
    figures = paper_figures()
    for others, known, used in (
        (OTHER_METHODS, LOSSES, {f.method for f in figures}),
        (OTHER_POSTHOC, METHODS, {f.posthoc for f in figures}),
        (OTHER_MEASURES, MEASURES, {f.measure for f in figures}),
    ):
        assert not others & known.keys()
        assert others <= used


@pytest.mark.parametrize(
    ("paper", "table", "where", "value", "std"),
    [
        ("smart", "1", ("CIFAR-10", "ResNet-50", "cross_entropy", "uncalibrated", "ece"), 4.34, None),
        ("smart", "1", ("CIFAR-10", "ResNet-50", "cross_entropy", "temperature", "ece"), 1.38, None),
        ("smart", "1", ("CIFAR-10", "ResNet-50", "cross_entropy", "smart", "ece"), 0.76, None),
        ("smart", "1", ("ImageNet-Sketch", "ViT-B/32", "pretrained", "feature_clipping", "ece"), 1.56, None),
        ("smart", "2", ("CIFAR-100", "DenseNet-121", "flsd", "smart", "ece"), 0.91, None),
        (
            "smart",
            "5",
            ("ImageNet", "ResNet-50", "pretrained", "class_temperature", "runtime"),
            5457.55,
            125.5,
        ),
        ("smart", "6", ("ImageNet", "ViT-B/16", "pretrained", "class_temperature", "ece"), 4.65, 1.02),
        ("smart", "7", ("ImageNet-C", "ViT-B/32", "pretrained", "parameterized", "accuracy"), 24.56, None),
        ("smart", "8", ("ImageNet", "Swin-B", "pretrained", "spline", "ece_equal_mass"), 1.04, 5.3),
        ("smart", "12", ("CIFAR-100", "ResNet-110", "mmce", "uncalibrated", "nll"), 180.6, None),
        ("seca", "1", ("CIFAR-100", "ResNet-32", "seca", "uncalibrated", "ece"), 1.90, None),
        ("seca", "1", ("CIFAR-10", "ResNet-56", "mdca", "uncalibrated", "ece_equal_mass"), 1.16, None),
        ("seca", "2", ("ImageNet", "ViT-Small", "seca", "uncalibrated", "training_time"), 32.08, None),
        ("seca", "3", ("20 Newsgroups", "BERT-Small", "seca", "uncalibrated", "sce"), 8.89, None),
        ("seca", "4", ("ImageNet", "ViT-Small", "", "", "learning_rate"), 0.0005, None),
        ("seca", "5", ("CIFAR-10", "ResNet-56", "mdca", "temperature", "ece"), 0.45, None),
        ("seca", "6", ("SVHN", "ResNet-56", "seca", "uncalibrated", "ood_auroc"), 93.06, None),
        (
            "selective_risk",
            "1",
            ("CIFAR-10", "PreResNet-56", "selective_risk", "temperature_ece", "classwise_ece"),
            0.335,
            None,
        ),
        (
            "selective_risk",
            "1",
            ("Tiny-ImageNet", "Swin-Tiny", "inverse_focal", "uncalibrated", "classwise_ece"),
            0.108,
            None,
        ),
        (
            "selective_risk",
            "2",
            ("CIFAR-100", "PreResNet-56", "dual_focal", "uncalibrated", "ece"),
            0.96,
            None,
        ),
        ("selective_risk", "appendix 2", ("CIFAR-100", "ResNet-110", "dual_focal", "", "gamma"), 6.1, None),
        (
            "selective_risk",
            "appendix 4",
            ("CIFAR-100", "Wide-ResNet", "selective_risk", "metacal_accuracy", "accuracy"),
            32.3,
            None,
        ),
        (
            "adafocal",
            "1",
            ("CIFAR-10", "ResNet-50", "adafocal", "uncalibrated", "ece_equal_mass"),
            0.66,
            None,
        ),
        ("adafocal", "1", ("ImageNet", "ResNet-50", "flsd", "temperature_ece", "temperature"), 0.74, None),
        ("adafocal", "2", ("20 Newsgroups", "BERT", "cross_entropy", "uncalibrated", "error"), 16.05, None),
        ("refcal", "abstract", ("CIFAR-100-LT", "", "refcal", "uncalibrated", "accuracy"), 58.81, None),
        ("refcal", "abstract", ("CIFAR-100-LT", "", "refcal", "uncalibrated", "refinement"), 95.67, None),
        ("refcal", "abstract", ("CIFAR-100-LT", "", "refcal", "uncalibrated", "ece"), 0.08, None),
        ("refcal", "abstract", ("CIFAR-100-LT", "", "crl", "uncalibrated", "ece"), 0.22, None),
        (
            "refcal",
            "fragment",
            ("CIFAR-10-LT", "", "refcal+cross_entropy", "uncalibrated", "smece"),
            6.85,
            None,
        ),
    ],
)
def test_headlines_are_as_printed(paper, table, where, value, std):
    names = dict(zip(("dataset", "model", "method", "posthoc", "measure"), where, strict=True))
    [figure] = paper_figures(paper, table=table, **names)
    assert (figure.value, figure.std) == (value, std)


def test_settings_tell_the_cells_of_an_ablation_apart():
    by_objective = {
        f.settings["objective"]: f.value
        for f in paper_figures("smart", table="3", model="ResNet-50", posthoc="smart", measure="ece")
    }
    assert by_objective == {
        "nll": 0.93,
        "label_smoothing": 1.09,
        "mse": 1.39,
        "brier": 1.38,
        "soft_ece": 0.65,
        "charbonnier": 0.52,
    }
    [figure] = paper_figures("smart", table="13", note="lambda=0.10;delta=0.010")
    assert figure.value == 3.11
    by_factor = {
        f.settings["imbalance_factor"]: f.value for f in paper_figures("seca", table="7", method="ols")
    }
    assert by_factor == {"10": 3.55, "50": 5.72, "100": 6.61}


def test_figures_that_a_paper_prints_twice_agree():
    assert values("smart", "1") == values("smart", "6")
    seca = values("seca", "1", measure="ece")
    assert seca == values("seca", "5", measure="ece", posthoc="uncalibrated")


def test_the_rows_of_selective_risk_carry_the_temperatures_of_their_dataset():
    # The text of table 1 has its datasets beside other rows; the temperatures of the appendix settle it.
    temperatures = values("selective_risk", "1", measure="temperature")
    assert len(temperatures) == 70
    assert temperatures == values("selective_risk", "appendix 4", measure="temperature")


def test_a_look_up_joins_its_conditions_and_may_find_nothing():
    everything = paper_figures()
    assert {figure.paper for figure in everything} == set(PAPERS)
    some = paper_figures(dataset="CIFAR-10", method="adafocal")
    assert {figure.paper for figure in some} == {"seca", "adafocal"}
    assert list(some) == [f for f in everything if f.dataset == "CIFAR-10" and f.method == "adafocal"]
    assert paper_figures("smart", table="99") == ()


def test_the_plain_value_is_on_the_scale_of_our_measures():
    def plain(unit):
        return PaperFigure("p", "1", "d", "m", "l", "h", "x", 4.34, None, unit, "").plain

    assert plain("percent") == plain("1e-2") == 10 * plain("1e-3") == 0.0434
    assert plain("fraction") == plain("number") == plain("hours") == 4.34


def test_the_sce_of_seca_is_in_thousandths_and_below_its_ece_as_only_nixons_can_be():
    pairs = {}
    for figure in paper_figures("seca", dataset="CIFAR-100", method="cross_entropy", table="1"):
        pairs.setdefault(figure.model, {})[figure.measure] = figure
    for found in pairs.values():
        assert found["sce"].unit == "1e-3"
        assert found["sce"].value < found["ece"].value
        # A top-label gap of g makes a classwise error of about 2 g / K; here K is 100.
        assert found["sce"].plain == pytest.approx(2 * found["ece"].plain / 100, rel=0.5)


def test_an_unknown_paper_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"^paper: expected one of smart, .*, refcal, got 'guo'$"):
        paper_figures("guo")


def test_an_unknown_condition_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"^where: expected names among dataset, .*, note, got 'loss'$"):
        paper_figures(loss="focal")
