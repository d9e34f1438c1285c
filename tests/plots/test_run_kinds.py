"""Figures of a run by name: from the columns that there are, of the last stage."""

import numpy as np
import pytest

from calibrant import InputError
from calibrant.plots import (
    AdaFocalGammasDisplay,
    BinErrorsDisplay,
    CorrespondenceDisplay,
    TrainingDynamicsDisplay,
)
from calibrant.plots.kinds import RUN_KINDS, draw_run, draw_runs
from tests.plots.conftest import COLUMNS, dynamics_rows, line, metric_rows

LABELS = {"train": "train", "val": "validation"}


def dynamics(n_epochs, *, stage="train", **options):
    return [row | {"stage": stage} for row in dynamics_rows(n_epochs, 15, **options)]


def panels(display):
    return {panel.get_title(): panel for panel in display.ax_.child_axes}


def test_each_column_is_a_line_of_its_panel():
    made = metric_rows(5)
    display = draw_run("dynamics", made, [])
    assert isinstance(display, TrainingDynamicsDisplay)
    assert list(panels(display)) == list(COLUMNS)
    for title, names in COLUMNS.items():
        for name in names:
            label = "validation, AdaECE" if "mass" in name else LABELS[name.split("_")[0]]
            x, y = line(panels(display)[title], label)
            assert list(x) == [1, 2, 3, 4, 5]
            np.testing.assert_array_equal(y, [row[name] for row in made])


def test_a_line_looks_the_same_in_every_panel_and_in_the_legend():
    display = draw_run("dynamics", metric_rows(3), [])
    for label in ("train", "validation"):
        looks = {
            (each.get_color(), each.get_marker())
            for panel in panels(display).values()
            for each in panel.lines
            if each.get_label() == label
        }
        assert len(looks) == 1
        legend = display.ax_.get_legend()
        texts = [text.get_text() for text in legend.get_texts()]
        handle = legend.legend_handles[texts.index(label)]
        assert looks == {(handle.get_color(), handle.get_marker())}  # type: ignore[attr-defined]


def test_columns_that_are_missing_have_no_panel():
    made = [{"epoch": epoch, "train_loss": 1 / epoch, "val_ece": None} for epoch in (1, 2)]
    assert [title for title in panels(draw_run("dynamics", made, [])) if title] == ["loss"]


def test_values_and_epochs_that_are_missing_leave_a_gap():
    made = metric_rows(4)
    made[1]["val_kl"] = None
    display = draw_run("dynamics", [made[0], made[1], made[3]], [])
    x, y = line(panels(display)["KL to the rest of the class (nats)"], "validation")
    assert list(x) == [1, 2, 3, 4]
    assert np.isnan(y).tolist() == [False, True, True, False]


def test_only_the_last_stage_is_drawn():
    encoder = [{"stage": "encoder", "epoch": epoch, "train_loss": 9.0} for epoch in (1, 2, 3)]
    made = metric_rows(2, stage="classifier")
    display = draw_run("dynamics", encoder + made, [])
    x, y = line(panels(display)["loss"], "train")
    assert list(x) == [1, 2]
    assert list(y) == [row["train_loss"] for row in made]
    told = dynamics(3, stage="encoder", seed=1) + dynamics(2, stage="classifier", gammas=True, first=4)
    gammas = draw_run("gammas", made, told).gamma  # type: ignore[attr-defined]
    np.testing.assert_array_equal(gammas, [row["adafocal"]["gammas"] for row in told[3:]])
    epochs = draw_run("correspondence", made, told).epochs  # type: ignore[attr-defined]
    assert epochs == [4, 5]


def test_gammas_are_those_of_the_dynamics():
    told = dynamics(4, gammas=True, first=2)
    display = draw_run("gammas", [], told)
    assert isinstance(display, AdaFocalGammasDisplay)
    np.testing.assert_array_equal(display.gamma, [row["adafocal"]["gammas"] for row in told])
    assert display.first_epoch == 2


def test_a_run_without_adafocal_has_no_gammas_but_bins():
    told = dynamics(4)
    with pytest.raises(InputError, match="^gammas: expected a run trained with AdaFocal, got one of a loss"):
        draw_run("gammas", metric_rows(4), told)
    display = draw_run("bins", metric_rows(4), told)
    assert isinstance(display, BinErrorsDisplay)
    assert display.bins == [1, 8, 15]


def test_correspondence_shows_first_middle_and_last_epoch():
    display = draw_run("correspondence", [], dynamics(5))
    assert isinstance(display, CorrespondenceDisplay)
    assert display.epochs == [1, 3, 5]


@pytest.mark.parametrize("kind", list(RUN_KINDS))
def test_every_kind_says_what_it_means_and_takes_a_place(kind, ax):
    assert RUN_KINDS[kind].meaning
    display = draw_run(kind, metric_rows(2), dynamics(2, gammas=True), ax=ax, title="a run")
    assert display.ax_ is ax
    assert ax.get_title() == "a run"


def test_nothing_to_draw_is_one_sentence():
    with pytest.raises(InputError, match="^metrics: expected at least one epoch, got none"):
        draw_run("dynamics", [], dynamics(2))
    with pytest.raises(InputError, match="^metrics: expected some of train_loss, .*, got epoch, lr$"):
        draw_run("dynamics", [{"epoch": 1, "lr": 0.1}], [])
    for kind in ("gammas", "bins", "correspondence"):
        with pytest.raises(InputError, match="^dynamics: expected at least one epoch, got none"):
            draw_run(kind, metric_rows(2), [])


def test_another_name_is_refused_with_those_there_are():
    with pytest.raises(
        InputError, match="^KIND: expected one of dynamics, gammas, bins, correspondence, got 'x'"
    ):
        draw_run("x", [], [])


def test_several_runs_have_one_line_each_on_validation_samples():
    runs = {"a": metric_rows(5), "b": metric_rows(3, seed=1)}
    display = draw_runs("dynamics", {name: [(rows, [])] for name, rows in runs.items()})
    assert "loss" not in panels(display)  # values of different losses cannot be compared
    for title, column in (("ECE, validation", "val_ece"), ("AdaECE, validation", "val_ece_equal_mass")):
        panel = panels(display)[title]
        for name, rows in runs.items():
            _, y = line(panel, name)
            assert list(y[: len(rows)]) == [row[column] for row in rows]
            assert np.isnan(y[len(rows) :]).all()
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == ["a", "b"]


def test_runs_of_one_name_are_averaged():
    seeds = [metric_rows(3), metric_rows(4, seed=1)]
    other = metric_rows(4, seed=2)
    display = draw_runs("dynamics", {"a": [(rows, []) for rows in seeds], "b": [(other, [])]})
    _, y = line(panels(display)["accuracy, validation"], "a, mean of 2")
    expected = [(one["val_accuracy"] + two["val_accuracy"]) / 2 for one, two in zip(*seeds, strict=False)]
    np.testing.assert_allclose(y[:3], expected)
    told = [dynamics(2, gammas=True), dynamics(2, gammas=True, seed=1)]
    bins = draw_runs("bins", {"a": [([], rows) for rows in told], "b": [([], dynamics(2))]})
    assert isinstance(bins, BinErrorsDisplay)
    gaps = [[row["bins"]["gap"] for row in rows] for rows in told]
    np.testing.assert_allclose(bins.runs["a, mean of 2"].gap, np.mean(np.array(gaps, float), axis=0))
    assert bins.runs["b"].gamma is None


@pytest.mark.parametrize("kind", ["gammas", "correspondence"])
def test_figures_of_one_run_refuse_several(kind):
    told = dynamics(2, gammas=True)
    with pytest.raises(InputError, match=f"^{kind}: expected one run, got 2; draw each in a figure"):
        draw_runs(kind, {"a": [([], told)], "b": [([], told)]})
