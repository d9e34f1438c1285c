"""Figures of bins over epochs draw exactly what the lines of a run's dynamics say."""

import numpy as np
import pytest

from calibrant import InputError
from calibrant.plots import BinErrorsDisplay, CorrespondenceDisplay
from tests.conftest import at_length
from tests.plots.conftest import dynamics_rows, line


def stacks(display):
    """The panels below each title."""
    return {block.get_title(): block.child_axes for block in display.ax_.child_axes if block.child_axes}


def drawn(panel, number=0):
    """Epochs and values of a line, without those across the whole panel."""
    lines = [each for each in panel.lines if each.get_label()[:6] != "_child" or len(each.get_xdata()) > 2]
    return lines[number].get_xdata(), lines[number].get_ydata()


def test_each_bin_shows_its_error_and_below_it_its_gamma():
    made = dynamics_rows(6, 15, gammas=True, first=3)
    panels = stacks(BinErrorsDisplay.from_rows(made))
    assert list(panels) == ["bin 1 of 15, lowest", "bin 8 of 15", "bin 15 of 15, highest"]
    for (errors, gammas), number in zip(panels.values(), (0, 7, 14), strict=True):
        for panel, values in (
            (errors, [row["bins"]["gap"][number] for row in made]),
            (gammas, [row["adafocal"]["gammas"][number] for row in made]),
        ):
            x, y = drawn(panel)
            assert list(x) == [3, 4, 5, 6, 7, 8]
            np.testing.assert_array_equal(y, values)


def horizontal_lines(panel):
    return [each.get_ydata()[0] for each in panel.lines if list(each.get_xdata()) == [0, 1]]


def test_zero_error_is_marked_and_all_bins_have_one_scale():
    panels = stacks(BinErrorsDisplay.from_rows(dynamics_rows(4, 6), bins=[1, 2, 6]))
    assert all(horizontal_lines(panel) == [0] for (panel,) in panels.values())
    assert len({panel.get_ylim() for (panel,) in panels.values()}) == 1


def test_where_gammas_turn_negative_zero_is_marked():
    made = dynamics_rows(4, 2, gammas=True)
    for row in made:
        row["adafocal"]["gammas"] = [1.5, -0.5]
    (_, positive), (_, negative) = stacks(BinErrorsDisplay.from_rows(made)).values()
    assert horizontal_lines(positive) == []
    assert horizontal_lines(negative) == [0]


def test_without_gammas_there_are_errors_only():
    assert all(len(stack) == 1 for stack in stacks(BinErrorsDisplay.from_rows(dynamics_rows(4, 15))).values())


def test_a_run_with_gammas_for_some_epochs_has_a_gap_in_the_others():
    made = dynamics_rows(3, 2, gammas=True)
    made[0]["adafocal"] = None
    _, gammas = next(iter(stacks(BinErrorsDisplay.from_rows(made)).values()))
    y = drawn(gammas)[1]
    assert np.isnan(y[0])
    np.testing.assert_array_equal(y[1:], [row["adafocal"]["gammas"][0] for row in made[1:]])


def test_empty_bins_leave_a_gap_also_if_they_always_are():
    made = dynamics_rows(5, 3)
    made[2]["bins"]["gap"][0] = None
    for row in made:
        row["bins"]["gap"][2] = None
    display = BinErrorsDisplay.from_rows(made)
    display.figure_.draw_without_rendering()
    first, _, last = (drawn(panel)[1] for (panel,) in stacks(display).values())
    assert np.isnan(first).tolist() == [False, False, True, False, False]
    assert np.isnan(last).all()
    only = BinErrorsDisplay.from_rows(made, bins=[3])
    assert np.isfinite(stacks(only)["bin 3 of 3, highest"][0].get_ylim()).all()


def test_runs_are_compared_by_name():
    runs = {"AdaFocal": dynamics_rows(4, 5, gammas=True), "cross-entropy": dynamics_rows(6, 5, seed=1)}
    display = BinErrorsDisplay.from_rows(runs, bins=[2])
    ((errors, gammas),) = stacks(display).values()
    for name, made in runs.items():
        np.testing.assert_array_equal(line(errors, name)[1], [row["bins"]["gap"][1] for row in made])
    assert [each.get_label() for each in gammas.lines if len(each.get_xdata()) > 2] == ["AdaFocal"]
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == list(runs)


@pytest.mark.parametrize("bins", [[0], [16], []])
def test_bins_that_are_not_there_are_refused(bins):
    with pytest.raises(InputError, match="^bins: expected numbers from 1 to 15, got"):
        BinErrorsDisplay.from_rows(dynamics_rows(2, 15), bins=bins)


def test_runs_of_unlike_bins_are_refused():
    with pytest.raises(InputError, match=r"^rows: expected runs with equally many bins, got \[3, 4\]"):
        BinErrorsDisplay.from_rows({"a": dynamics_rows(2, 3), "b": dynamics_rows(2, 4)})
    with pytest.raises(InputError, match="^rows: expected as many bins in each epoch"):
        BinErrorsDisplay.from_rows(dynamics_rows(2, 3) + dynamics_rows(2, 4))


@pytest.mark.parametrize("display", [BinErrorsDisplay, CorrespondenceDisplay])
def test_what_is_no_line_of_dynamics_is_refused(display):
    with pytest.raises(InputError, match="^rows: expected at least one epoch, got none"):
        display.from_rows([])
    with pytest.raises(
        InputError, match=r"^rows: expected lines of dynamics.jsonl, .*, got epoch, train_loss$"
    ):
        display.from_rows([{"epoch": 1, "train_loss": 0.5}])


def test_correspondence_shows_both_confidences_and_where_the_samples_are():
    made = dynamics_rows(9, 4)
    panels = stacks(CorrespondenceDisplay.from_rows(made))
    assert list(panels) == ["epoch 1", "epoch 5", "epoch 9"]
    for (top, bottom), place in zip(panels.values(), (0, 4, 8), strict=True):
        bins = made[place]["bins"]
        x, y = line(top, "validation: confidence")
        assert list(x) == [1, 2, 3, 4]
        np.testing.assert_array_equal(y, bins["confidence"])
        np.testing.assert_array_equal(line(top, "training: true-class probability")[1], bins["train_true"])
        heights = [bar.get_height() for bar in bottom.containers[0]]
        np.testing.assert_allclose(
            heights, np.array(bins["train_true_count"]) / sum(bins["train_true_count"])
        )
        steps = bottom.patches[-1].get_data()
        np.testing.assert_allclose(steps.values, np.array(bins["count"]) / sum(bins["count"]))


def test_a_bin_without_training_samples_has_no_point():
    made = dynamics_rows(1, 3)
    made[0]["bins"]["train_true"][1] = None
    ((top, _),) = stacks(CorrespondenceDisplay.from_rows(made)).values()
    assert np.isnan(line(top, "training: true-class probability")[1]).tolist() == [False, True, False]


def test_epochs_can_be_chosen_if_they_were_measured():
    made = dynamics_rows(9, 4)
    assert list(stacks(CorrespondenceDisplay.from_rows(made, epochs=[2, 7]))) == ["epoch 2", "epoch 7"]
    for epochs in ([10], []):
        with pytest.raises(InputError, match="^epochs: expected some of those measured, 1 to 9, got"):
            CorrespondenceDisplay.from_rows(made, epochs=epochs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_epochs", "n_bins"), at_length([(1, 1), (1, 15), (2, 2), (150, 1), (150, 2)], [(1, 1), (150, 2)])
)
def test_short_and_long_runs_of_few_and_many_bins_can_be_drawn(n_epochs, n_bins):
    made = dynamics_rows(n_epochs, n_bins, gammas=True)
    for display in (
        BinErrorsDisplay.from_rows(made, bins=range(1, n_bins + 1)),
        CorrespondenceDisplay.from_rows(made),
    ):
        display.figure_.draw_without_rendering()


@pytest.mark.slow
def test_panels_of_many_bins_do_not_touch():
    display = BinErrorsDisplay.from_rows(dynamics_rows(5, 15, gammas=True), bins=range(1, 16))
    display.figure_.draw_without_rendering()
    boxes = [panel.get_tightbbox() for stack in stacks(display).values() for panel in stack]
    assert len(boxes) == 30
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:place])
