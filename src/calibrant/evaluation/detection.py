"""Out-of-distribution detection: how well each score separates such samples from known ones."""

from collections.abc import Mapping

from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics.ood import OODScores, ood_scores
from calibrant.metrics.scores import SCORES, confidence_score
from calibrant.outcomes import refuse_weights
from calibrant.results import FrozenDict


def detect_ood(known: Predictions, foreign: Predictions) -> Mapping[str, OODScores]:
    """Measure every confidence score that can be computed for both sets of predictions.

    Args:
        known: Predictions for in-distribution samples; labels are not needed.
        foreign: Predictions for out-of-distribution samples.

    Example:
        >>> from calibrant import Predictions
        >>> known, foreign = Predictions(logits=[[4.0, 0.0], [0.0, 3.0]]), Predictions(logits=[[0.1, 0.0]])
        >>> detect_ood(known, foreign)["msp"].auroc
        1.0
    """
    pairs = score_pairs(known, foreign)
    return FrozenDict({name: ood_scores(*pair) for name, pair in pairs.items()})


def score_pairs(known: Predictions, foreign: Predictions) -> dict[str, tuple[Tensor, Tensor]]:
    """Return every score that both sets of predictions allow, for the samples of either set; no weights."""
    for each in (known, foreign):
        refuse_weights(each.weights, "out-of-distribution detection")
    if (known.confidence is None) != (foreign.confidence is None):
        raise InputError("predictions: expected the same form twice, got class scores and confidences")
    if known.confidence is not None and foreign.confidence is not None:
        return {"confidence": (known.confidence, foreign.confidence)}
    if known.logits is not None and foreign.logits is not None:
        named, a, b = list(SCORES), {"logits": known.logits}, {"logits": foreign.logits}
    else:
        named = [name for name, score in SCORES.items() if score.reads == "probs"]
        a, b = {"probs": known.to_probs()}, {"probs": foreign.to_probs()}
    return {name: (confidence_score(name, **a), confidence_score(name, **b)) for name in named}
