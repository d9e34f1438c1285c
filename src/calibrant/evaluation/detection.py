"""Out-of-distribution detection: how well each score tells known samples from foreign ones."""

from collections.abc import Mapping
from types import MappingProxyType

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics.ood import OODScores, ood_scores
from calibrant.metrics.scores import SCORES, confidence_score


def detect_ood(known: Predictions, foreign: Predictions) -> Mapping[str, OODScores]:
    """Rate every score that both sets of predictions allow; labels are not needed.

    Example:
        >>> from calibrant import Predictions
        >>> known, foreign = Predictions(logits=[[4.0, 0.0], [0.0, 3.0]]), Predictions(logits=[[0.1, 0.0]])
        >>> detect_ood(known, foreign)["msp"].auroc
        1.0
    """
    if known.k is None or foreign.k is None:
        both = [known.confidence, foreign.confidence]
        if both[0] is None or both[1] is None:
            raise InputError("predictions: expected the same form twice, got class scores and confidences")
        return MappingProxyType({"confidence": ood_scores(both[0], both[1])})
    rated = {}
    for name, score in SCORES.items():
        if known.logits is not None and foreign.logits is not None:
            pair = [confidence_score(name, logits=p.logits) for p in (known, foreign)]
        elif score.reads == "probs":
            pair = [confidence_score(name, probs=p.to_probs()) for p in (known, foreign)]
        else:
            continue
        rated[name] = ood_scores(*pair)
    return MappingProxyType(rated)
