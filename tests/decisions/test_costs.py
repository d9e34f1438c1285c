"""Actions by cost: brute force over actions, files of costs, break-even costs, intervals."""

import itertools

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.decisions import CostRule, Costs, act_on_costs, cost_of_asking, read_costs
from calibrant.errors import FormatError, InputError
from calibrant.posthoc import TemperatureScaling


def sharp(overconfident, n=400):
    logits, labels = overconfident
    return Predictions(logits=logits[:n], labels=labels[:n])


def some_costs(k, m=3, seed=0):
    return Costs(np.random.default_rng(seed).normal(size=(k, m)))


def test_the_action_is_the_cheapest_of_all_by_a_plain_loop(overconfident):
    given = sharp(overconfident, 50)
    costs = some_costs(given.k)
    found = CostRule(costs, n_classes=given.k).decide(given).columns
    for p, action, cost in zip(
        given.to_probs().tolist(), found["action"], found["expected_cost"], strict=True
    ):
        expected = [
            sum(p[y] * float(costs.values[y, a]) for y in range(given.k)) for a in range(len(costs.actions))
        ]
        assert expected[int(action)] == pytest.approx(min(expected))
        assert cost == pytest.approx(min(expected))


def test_no_other_assignment_of_actions_is_predicted_to_cost_less():
    given = Predictions(probs=[[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]], labels=[0, 1, 1])
    costs = Costs([[0, 1, 0.4], [3, 0, 0.4]], actions=["a", "b", "ask"])
    found = act_on_costs(given, costs, methods=None)
    probs = given.to_probs().double()
    every = [
        np.mean([float(probs[i] @ costs.values[:, a]) for i, a in enumerate(actions)])
        for actions in itertools.product(range(3), repeat=3)
    ]
    assert found.before.predicted == pytest.approx(min(every))
    paid = [
        float(costs.values[y, costs.actions.index(a)])
        for y, a in zip([0, 1, 1], _actions(given, costs), strict=True)
    ]
    assert found.before.observed == pytest.approx(np.mean(paid))


def _actions(given, costs):
    return CostRule(costs, n_classes=given.k, class_names=given.class_names).decide(given).columns["action"]


def test_of_actions_that_cost_the_same_the_first_is_taken():
    given = Predictions(probs=[[0.5, 0.5], [0.3, 0.7]])
    assert _actions(given, Costs([[1, 0, 1], [0, 1, 0]], actions=["x", "y", "z"])) == ["x", "x"]
    assert _actions(given, Costs([[0, 1], [1, 0]], actions=["x", "y"]))[0] == "x"
    assert _actions(given, Costs([[1, 0], [0, 1]], actions=["y", "x"]))[0] == "y"


def test_costs_of_zero_and_one_are_the_error_rate(overconfident):
    given = sharp(overconfident)
    found = act_on_costs(given, Costs(1 - torch.eye(given.k)), methods=None)
    outcomes = given.outcomes()
    assert found.before.observed == pytest.approx(1 - float(outcomes.correct.double().mean()))
    assert found.before.predicted == pytest.approx(1 - float(outcomes.confidence.mean()))
    assert found.before.low < found.before.observed < found.before.high


def test_calibration_saves_where_an_overconfident_model_does_not_ask(overconfident):
    given = sharp(overconfident, 2000)
    costs = Costs(10 * (1 - torch.eye(given.k))).with_ask(2.0)
    found = act_on_costs(given, costs, methods=["temperature"])
    assert found.method == "temperature"
    assert found.after.observed < found.before.observed
    assert found.difference.high < 0
    assert found.difference.value == pytest.approx(found.after.observed - found.before.observed)
    # After calibration a model knows what it costs to follow it.
    assert abs(found.after.predicted - found.after.observed) < abs(
        found.before.predicted - found.before.observed
    )
    assert found.after.shares["ask a person"] == pytest.approx(found.break_even.asked)
    assert sum(found.after.shares.values()) == pytest.approx(1)


def test_a_given_calibrator_is_used_as_it_is(overconfident):
    given = sharp(overconfident)
    costs = Costs(10 * (1 - torch.eye(given.k))).with_ask(2.0)
    hot = act_on_costs(given, costs, calibrator=TemperatureScaling(3.0))
    assert hot.method == "TemperatureScaling"
    divided = Predictions(logits=given.logits / 3, labels=given.labels)
    assert hot.after.observed == pytest.approx(act_on_costs(divided, costs, methods=None).before.observed)
    assert hot.rule.decide(given).columns["action"] == _actions(divided, costs)


def test_the_best_single_action_is_the_cheapest_on_average():
    given = Predictions(probs=[[0.5, 0.5]] * 4, labels=[0, 0, 0, 1])
    found = act_on_costs(given, Costs([[0, 1], [8, 0]], actions=["a", "b"]), methods=None)
    assert (found.best_single, found.best_single_cost) == ("b", 0.75)


def test_the_break_even_cost_is_where_asking_begins_and_ends_to_pay(overconfident):
    given = sharp(overconfident)
    costs = Costs(10 * (1 - torch.eye(given.k)))
    found = act_on_costs(given, costs, methods=None).break_even
    assert found.asked is None
    share_asked = {}
    for cost in (found.always, found.never, *found.shares.values()):
        for shift in (-1e-3, 1e-3):
            asked = act_on_costs(given, costs.with_ask(cost + shift), methods=None).break_even.asked
            share_asked[cost, shift] = asked
    assert share_asked[found.always, -1e-3] == 1
    assert share_asked[found.never, -1e-3] > 0 == share_asked[found.never, 1e-3]
    for share, cost in found.shares.items():
        assert share_asked[cost, 1e-3] <= share + 1e-9 <= share_asked[cost, -1e-3] + 1e-9


def test_the_cost_by_the_cost_of_asking_is_that_of_a_matrix_with_this_action(overconfident):
    given = sharp(overconfident)
    costs = Costs(10 * (1 - torch.eye(given.k)))
    calibrator = TemperatureScaling(3.0)
    found = cost_of_asking(given, costs, ask=[0.5, 2.0, 6.0], calibrator=calibrator)
    for cost, observed, predicted, asked in zip(
        found.ask, found.observed, found.predicted, found.asked, strict=True
    ):
        whole = act_on_costs(given, costs.with_ask(cost), calibrator=calibrator)
        assert (observed, predicted) == pytest.approx((whole.after.observed, whole.after.predicted))
        assert asked == pytest.approx(whole.break_even.asked)
    mistakes = cost_of_asking(given)
    assert mistakes.asked[-1] == 0
    assert mistakes.observed[-1] == pytest.approx(1 - float(given.outcomes().correct.double().mean()))


def test_actions_that_never_depend_on_the_class_leave_nothing_to_break_even():
    given = Predictions(probs=[[0.5, 0.5]], labels=[0])
    assert act_on_costs(given, Costs([[1.0], [1.0]], actions=["ask"]), methods=None).break_even is None


def test_pairs_have_rows_wrong_and_right():
    given = Predictions(confidence=[0.9, 0.6], correct=[True, False])
    for classes in (("right", "wrong"), ("true", "false"), ("1", "0")):
        costs = Costs([[0.0], [10.0]], actions=["answer"], classes=classes).with_ask(2.0)
        found = act_on_costs(given, costs, methods=None)
        assert found.rule.decide(given).columns["action"] == ["answer", "ask a person"]
        assert found.before.observed == 1.0


def test_repeating_a_sample_and_weighing_it_are_the_same():
    p, y, w = [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], [0, 0, 1], [3, 1, 2]
    costs = Costs([[0, 1], [4, 0]])
    weighed = act_on_costs(Predictions(probs=p, labels=y, weights=w), costs, methods=None)
    repeated = act_on_costs(
        Predictions(probs=np.repeat(p, w, axis=0), labels=np.repeat(y, w)), costs, methods=None
    )
    for name in ("predicted", "observed"):
        assert getattr(weighed.before, name) == pytest.approx(getattr(repeated.before, name))
    assert weighed.break_even.shares == pytest.approx(repeated.break_even.shares)
    assert weighed.best_single_cost == pytest.approx(repeated.best_single_cost)


def test_a_file_of_costs_has_its_rows_in_any_order(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("true,wait,treat,ask a person\nill,20,0,2\nhealthy,0,-1.5,2\n", encoding="utf-8-sig")
    costs = read_costs(path)
    assert costs.actions == ("wait", "treat", "ask a person")
    assert costs.asking == ("ask a person",)
    given = Predictions(probs=[0.1], class_names=["healthy", "ill"])
    assert costs.for_predictions(given).tolist() == [[0, -1.5, 2], [20, 0, 2]]
    path.write_text("true,wait,treat\n1,20,0\n0,0,1\n")
    for names in (None, ["healthy", "ill"]):
        given = Predictions(probs=[0.1], class_names=names)
        assert read_costs(path).for_predictions(given).tolist() == [[0, 1], [20, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("true,a\n0,1\n", "expected a row of actions and a row of costs for each of at least two classes"),
        ("true,a,b\n0,1,2\n1,1\n", "row 3: expected a class and 2 costs, got 2 cells"),
        ("true,a,b\n0,1,x\n1,1,2\n", "row 2, column 'b': expected a finite number, got 'x'"),
        ("true,a,b\n0,1,nan\n1,1,2\n", "row 2, column 'b': expected a finite number, got 'nan'"),
        ("true,a,b\n0,1,\n1,1,2\n", "row 2, column 'b': expected a finite number, got ''"),
        ("true,a,a\n0,1,2\n1,1,2\n", "actions: expected different names, got 'a' twice"),
        ("true,a,b\n0,1,2\n0,1,2\n", "classes: expected different names, got '0' twice"),
        ('true,a,b\n0,1,"2\n', "expected a CSV file of costs"),
    ],
)
def test_a_bad_file_of_costs_is_refused_in_one_sentence_that_names_it(tmp_path, text, message):
    path = tmp_path / "costs.csv"
    path.write_text(text)
    with pytest.raises((FormatError, InputError)) as caught:
        read_costs(path)
    assert str(caught.value).startswith(f"costs.csv: {message}")


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (lambda: Costs([0.0, 1.0]), "costs: expected a matrix with a row for each true class"),
        (lambda: Costs([[0.0, np.nan], [1.0, 0.0]]), "costs: expected finite numbers, got nan in row 0"),
        (lambda: Costs([[0.0], [1.0]], actions=["a", "b"]), "actions: expected 1 names"),
        (
            lambda: Costs([[0.0], [1.0]]).with_ask(np.inf),
            "costs: expected finite numbers, got inf in row 0, column 1",
        ),
        (
            lambda: Costs([[0.0], [1.0]]).with_ask(1).with_ask(2),
            "name: expected an action that the costs do not",
        ),
        (lambda: CostRule(Costs([[0.0], [1.0]]), n_classes=3), "costs: expected 3 rows"),
        (
            lambda: _for_cats(Costs([[0.0], [1.0], [2.0]])),
            "costs: expected a row for each of 2 classes, got 3",
        ),
        (
            lambda: _for_cats(Costs([[0], [1]], classes=["cat", "dgo"])),
            "costs: expected a row for each of the",
        ),
        (
            lambda: Costs([[0], [1], [2]]).for_predictions(Predictions(confidence=[0.5])),
            "costs: expected two rows, wrong and right, got 3",
        ),
        (lambda: read_costs("no-such.csv"), "no-such.csv: expected a CSV file of costs, got no such file"),
    ],
)
def test_costs_of_the_wrong_shape_are_refused_in_one_sentence(costs, message):
    with pytest.raises((FormatError, InputError)) as caught:
        costs()
    assert str(caught.value).startswith(message)


def _for_cats(costs):
    return costs.for_predictions(Predictions(probs=[0.2], class_names=["cat", "dog"]))


def test_a_misspelt_class_gets_a_hint():
    with pytest.raises(InputError, match="got 'dgo'; did you mean 'dog'"):
        _for_cats(Costs([[0], [1]], classes=["cat", "dgo"]))


def test_samples_without_labels_have_no_observed_cost():
    with pytest.raises(InputError, match="labels: expected"):
        act_on_costs(Predictions(probs=[0.2]), Costs([[0], [1]]), methods=None)


def test_intervals_of_costs_are_by_unit(overconfident):
    given, costs = sharp(overconfident, 200), some_costs(5, 3)
    rows = np.repeat(np.arange(200), 4)
    plain, blind, by_unit, alone = (
        act_on_costs(each, costs, methods=None)
        for each in (
            given,
            given.take(rows),
            given.take(rows).replaced(units=rows),
            given.replaced(units=np.arange(200) + 3),
        )
    )
    assert alone.to_dict() == plain.to_dict()
    assert by_unit.before.observed == pytest.approx(plain.before.observed)
    widths = [each.before.high - each.before.low for each in (plain, blind, by_unit)]
    assert widths[2] == pytest.approx(widths[0], rel=1e-9)
    assert widths[1] < 0.6 * widths[0]
    assert (by_unit.n, by_unit.n_units) == (800, 200)
