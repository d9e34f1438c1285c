"""A labelled and an unlabelled set of predictions of the same model, which are compared."""

from calibrant.data.predictions import Predictions
from calibrant.decisions.rule import check_one_label
from calibrant.errors import InputError
from calibrant.evaluation.given import PredictionsLike, given_predictions, is_source
from calibrant.outcomes import refuse_weights

#: Fewer samples, or units of them, say too little.
LEAST_ROWS = 20


def given_sets(
    labelled: PredictionsLike,
    unlabelled: PredictionsLike,
    *,
    purpose: str,
    classes: str = "",
    name: str = "labelled",
) -> tuple[Predictions, Predictions]:
    """Return both sets, with the same classes in the same order; refuse those that cannot be compared.

    Args:
        labelled: Predictions with the truth, or a file of them.
        unlabelled: Predictions, or a file of them, which need no labels.
        purpose: What takes no weights, for error messages.
        classes: What is done with scores of classes, if nothing else will do.
        name: What the labelled set is called in error messages.
    """
    before, after = given_predictions(labelled, name=name), _given_unlabelled(unlabelled)
    for which, each in ((name, before), ("unlabelled", after)):
        if classes:
            each.classes(f"scores of classes, {classes}", name=which)
        check_one_label(each, name=which)
        refuse_weights(each.weights, purpose)
        if each.n_independent < LEAST_ROWS:
            what = "samples" if each.units is None else "units"
            raise InputError(f"{which}: expected at least {LEAST_ROWS} {what}, got {each.n_independent}")
    if before.truth is None:
        raise InputError(
            f"{name}: expected the class of each sample, or whether each answer was right, got neither; give "
            "the set that the calibrator was fitted on, or swap the files if they are exchanged"
        )
    if before.k != after.k:
        raise InputError(f"unlabelled: expected {before.described}, as in {name}, got {after.described}")
    return before, after.in_order(before.class_names, name="unlabelled")


def _given_unlabelled(given: PredictionsLike) -> Predictions:
    from calibrant.data.files import load_predictions

    if is_source(given):
        return load_predictions(given, need_labels=False)
    return given_predictions(given, name="unlabelled")
