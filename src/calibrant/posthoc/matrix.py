"""Matrix scaling (Guo et al., ICML 2017), regularised as it needs to be (Kull et al., NeurIPS 2019)."""

from typing import Literal, Self, TypeAlias, Unpack, get_args

from calibrant.inputs import ArrayLike, check_choice
from calibrant.posthoc.fitting.affine import LinearMap, Ridge, check_strength, fit_strength, odir
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

Penalty: TypeAlias = Literal["l2", "odir"]


class MatrixScaling(LinearMap):
    r"""Mix the logits of all classes linearly: :math:`p = \mathrm{softmax}(W z + b)`.

    Repairs systematic confusions; the predicted class may change. With ``k (k + 1)`` parameters it overfits
    small sets unless it is penalised.
    """

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        penalty: Penalty = "l2",
        strength: float | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Minimise the negative log-likelihood plus a penalty on the distance from temperature scaling.

        With the best temperature :math:`T` and :math:`D = T W - I`, added to the mean is

        * ``"l2"``: :math:`\lambda \frac{k}{n} (|D|^2 + |b|^2)`,
        * ``"odir"``: :math:`\lambda \frac{k (k-1)}{n} \sum_{j \ne l} D_{jl}^2 + \lambda \frac{k}{n} |b|^2`,
          and a weak pull on the diagonal.

        Unless given, :math:`\lambda` is chosen from 100, 10, ..., 0.01 by five-fold cross-validation: the
        strongest within one standard error of the best held-out likelihood. If no strength beats temperature
        scaling there, the result *is* temperature scaling. On the fitting set it is never less likely than
        temperature scaling.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            penalty: What is penalised: every entry alike, or off-diagonals and intercepts.
            strength: The factor :math:`\lambda`; infinity is temperature scaling.
        """
        data = cls.data(logits, labels, **rows)
        k = data.n_classes
        check_choice(penalty, "penalty", get_args(Penalty))
        temperature = likeliest_temperature(data)
        scaled = data.with_logits(data.logits / temperature)
        ridge_of = odir if penalty == "odir" else _alike
        given = check_strength(strength)
        fitted, strength = fit_strength(scaled, lambda s: ridge_of(k, s), given)
        calibrator = cls(fitted.weight / temperature, fitted.intercept)
        calibrator.for_folds = {"strength": strength}
        return calibrator


def _alike(k: int, strength: float) -> Ridge:
    """Return the same price for every entry."""
    return Ridge(k * strength, k * strength, k * strength)
