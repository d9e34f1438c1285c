"""The training losses by name, and losses made from text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from calibrant import losses
from calibrant.errors import InputError
from calibrant.losses.expression import parse_loss
from calibrant.losses.loss import Loss


@dataclass(frozen=True)
class TrainingLoss:
    """A training loss by name.

    Attributes:
        module: Its class; the function of the same name stands beside it.
        paper: Where it comes from.
        recipe: How it is used by default, as :func:`make_loss` reads it: a term stands beside the loss that
            it is added to.
        reads: ``"logits"``, or ``"embeddings"`` for a loss of an encoder.
        sizes: What its class must be told of the data: ``n_classes`` or ``n_samples``.
    """

    module: type[Loss]
    paper: str
    recipe: str
    reads: Literal["logits", "embeddings"] = "logits"
    sizes: tuple[Literal["n_classes", "n_samples"], ...] = ()

    @property
    def is_term(self) -> bool:
        """Whether it is only useful beside another loss."""
        return "+" in self.recipe


LOSSES: Mapping[str, TrainingLoss] = {
    "cross_entropy": TrainingLoss(losses.CrossEntropyLoss, "the baseline", "cross_entropy"),
    "label_smoothing": TrainingLoss(
        losses.LabelSmoothingLoss, "Szegedy et al., CVPR 2016", "label_smoothing(smoothing=0.05)"
    ),
    "ols": TrainingLoss(losses.OLSLoss, "Zhang et al., TIP 2021", "ols", sizes=("n_classes",)),
    "focal": TrainingLoss(losses.FocalLoss, "Mukhoti et al., NeurIPS 2020", "focal(gamma=3.0)"),
    "flsd": TrainingLoss(losses.FLSDLoss, "Mukhoti et al., NeurIPS 2020", "flsd"),
    "inverse_focal": TrainingLoss(
        losses.InverseFocalLoss, "Wang et al., NeurIPS 2021", "inverse_focal(gamma=1.0)"
    ),
    "dual_focal": TrainingLoss(losses.DualFocalLoss, "Tao et al., ICML 2023", "dual_focal(gamma=5.0)"),
    "brier": TrainingLoss(losses.BrierLoss, "Brier, 1950", "brier"),
    "confidence_penalty": TrainingLoss(
        losses.ConfidencePenaltyLoss,
        "Pereyra et al., ICLR workshop 2017",
        "cross_entropy + 0.1 * confidence_penalty",
    ),
    "logit_norm": TrainingLoss(losses.LogitNormLoss, "Wei et al., ICML 2022", "logit_norm"),
    "mbls": TrainingLoss(losses.MbLSLoss, "Liu et al., CVPR 2022", "cross_entropy + 0.1 * mbls"),
    "mmce": TrainingLoss(losses.MMCELoss, "Kumar et al., ICML 2018", "cross_entropy + 2.0 * mmce"),
    "dca": TrainingLoss(losses.DCALoss, "Liang et al., BMVC 2020", "cross_entropy + 1.0 * dca"),
    "mdca": TrainingLoss(losses.MDCALoss, "Hebbalaguppe et al., CVPR 2022", "focal(gamma=1.0) + 1.0 * mdca"),
    "kde": TrainingLoss(losses.KDELoss, "Popordanoska et al., NeurIPS 2022", "cross_entropy + 0.2 * kde"),
    "soft_ece": TrainingLoss(
        losses.SoftECELoss, "Karandikar et al., NeurIPS 2021", "cross_entropy + 1.0 * soft_ece"
    ),
    "charbonnier": TrainingLoss(losses.CharbonnierLoss, "SMART, Eq. 6", "cross_entropy + 1.0 * charbonnier"),
    "crl": TrainingLoss(
        losses.CRLLoss, "Moon et al., ICML 2020", "cross_entropy + 1.0 * crl", sizes=("n_samples",)
    ),
    "calfocal": TrainingLoss(losses.CalFocalLoss, "AdaFocal, Sec. 4", "calfocal"),
    "adafocal": TrainingLoss(losses.AdaFocalLoss, "AdaFocal, NeurIPS 2022", "adafocal"),
    "seca": TrainingLoss(losses.SECALoss, "SECA", "seca"),
    "selective_risk": TrainingLoss(losses.SelectiveRiskLoss, "selective risk (AU)", "selective_risk"),
    "aurc": TrainingLoss(losses.AURCLoss, "selective risk (AU), Sec. 3", "aurc"),
    "refinement": TrainingLoss(losses.RefinementLoss, "RefCal", "refinement", reads="embeddings"),
    "supervised_contrastive": TrainingLoss(
        losses.SupervisedContrastiveLoss,
        "Khosla et al., NeurIPS 2020",
        "supervised_contrastive",
        reads="embeddings",
    ),
}


def make_loss(text: str, *, n_classes: int | None = None, n_samples: int | None = None) -> Loss:
    """Make a loss from its name or from a sum such as ``"focal(gamma=3) + 0.5 * mdca"``.

    Args:
        text: What to make. A bare name means its recipe: ``"mmce"`` is cross-entropy with that term.
        n_classes: Number of classes, for the losses that keep something of each.
        n_samples: Number of training samples, for the losses that keep something of each.

    Example:
        >>> make_loss("mdca")
        FocalLoss(gamma=1.0) + MDCALoss()
    """
    sizes = {"n_classes": n_classes, "n_samples": n_samples}
    makers = {name: _maker(name, loss, sizes) for name, loss in LOSSES.items()}
    recipe = LOSSES[text.strip()].recipe if text.strip() in LOSSES else text
    return parse_loss(recipe, makers)


def reads_embeddings(loss: Loss) -> bool:
    """Whether a loss compares the features of samples rather than reading their logits.

    Example:
        >>> reads_embeddings(make_loss("refinement"))
        True
    """
    kinds = tuple(each.module for each in LOSSES.values() if each.reads == "embeddings")
    return any(isinstance(each, kinds) for each in loss.modules())


def _maker(name: str, loss: TrainingLoss, sizes: Mapping[str, int | None]) -> Callable[..., Loss]:
    def make(**options: Any) -> Loss:  # noqa: ANN401  # each loss has its own
        known = {size: sizes[size] for size in loss.sizes if size not in options}
        missing = [size for size, value in known.items() if value is None]
        if missing:
            raise InputError(f"loss: {name} needs {missing[0]}; pass it beside the name")
        return loss.module(**known, **options)

    return make
