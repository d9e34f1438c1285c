"""The catalogue of training losses, and losses made from text."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calibrant.catalogue import Catalogue
from calibrant.docstrings import Option, description
from calibrant.errors import InputError
from calibrant.losses.adafocal import AdaFocalLoss, CalFocalLoss
from calibrant.losses.brier import BrierLoss
from calibrant.losses.bsce import BSCEGRALoss
from calibrant.losses.confidence_penalty import ConfidencePenaltyLoss
from calibrant.losses.crl import CRLLoss
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.dca import DCALoss, MDCALoss
from calibrant.losses.dual_focal import DualFocalLoss
from calibrant.losses.expression import parse_loss
from calibrant.losses.focal import FLSDLoss, FocalLoss
from calibrant.losses.inverse_focal import InverseFocalLoss
from calibrant.losses.kde import KDELoss
from calibrant.losses.label_smoothing import LabelSmoothingLoss
from calibrant.losses.logit_norm import LogitNormLoss
from calibrant.losses.loss import EmbeddingLoss, FunctionLoss, Loss
from calibrant.losses.mbls import MbLSLoss
from calibrant.losses.mmce import MMCELoss
from calibrant.losses.ols import OLSLoss
from calibrant.losses.refinement import RefinementLoss
from calibrant.losses.seca import SECALoss
from calibrant.losses.selective_risk import AURCLoss, SelectiveRiskLoss
from calibrant.losses.soft_ece import CharbonnierLoss, SoftECELoss
from calibrant.losses.supervised_contrastive import SupervisedContrastiveLoss


@dataclass(frozen=True)
class TrainingLoss:
    """An entry of the catalogue: a loss, or a variant of one with the settings of a paper.

    Attributes:
        module: The class; its ``function`` is the function form.
        meaning: What the loss does, in one sentence.
        paper: Where it comes from.
        recipe: How it is used by default, in the notation of :func:`make_loss`; a term includes the loss
            that it is added to.
        variant: Options that differ from the defaults of the class.
    """

    module: type[FunctionLoss]
    meaning: str
    paper: str
    recipe: str
    variant: Mapping[str, Any] = field(default_factory=dict)

    def make(self, **options: Any) -> FunctionLoss:  # noqa: ANN401  # each loss has its own
        """Make the loss with the options of this variant, and others that are given."""
        return self.module(**{**self.variant, **options})

    @property
    def reads(self) -> Literal["logits", "embeddings"]:
        """What the loss takes: logits, or the embeddings of an encoder."""
        return "embeddings" if issubclass(self.module, EmbeddingLoss) else "logits"

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of the class, in the order of its constructor, with the defaults of this variant."""
        defaults = {
            each.name: self.variant.get(each.name, each.default)
            for each in inspect.signature(self.module).parameters.values()
        }
        return tuple(
            Option(
                each.name,
                None if defaults[each.name] is each.empty else repr(defaults[each.name]),
                each.annotation.__metadata__[0],
            )
            for each in inspect.signature(self.module).parameters.values()
        )

    @property
    def sizes(self) -> tuple[str, ...]:
        """The options that must be given: the number of classes or of training samples."""
        return tuple(option.name for option in self.options if option.default is None)

    @property
    def explanation(self) -> str:
        """Formula and description from the documentation of the function and the class, as plain text."""
        return "\n\n".join(filter(None, map(description, (self.module.function, self.module))))


LOSSES: Catalogue[TrainingLoss] = Catalogue(
    "loss",
    "the name of a loss",
    {
        "cross_entropy": TrainingLoss(
            CrossEntropyLoss,
            "The negative log-probability of the true class.",
            "the baseline",
            "cross_entropy",
        ),
        "label_smoothing": TrainingLoss(
            LabelSmoothingLoss,
            "Cross-entropy against labels that give a little probability to every class.",
            "Szegedy et al., CVPR 2016",
            "label_smoothing(smoothing=0.05)",
        ),
        "label_smoothing_seca": TrainingLoss(
            LabelSmoothingLoss,
            "Label smoothing as in SECA's tables: a tenth of the label is spread over all classes.",
            "baseline of SECA, Tables 1 to 7",
            "label_smoothing_seca",
            {"smoothing": 0.1},
        ),
        "ols": TrainingLoss(
            OLSLoss,
            "Cross-entropy against the label mixed with the mean prediction for its class in the last epoch.",
            "Zhang et al., TIP 2021",
            "ols",
        ),
        "focal": TrainingLoss(
            FocalLoss,
            "Cross-entropy that fades out for samples that the model already classifies correctly.",
            "Mukhoti et al., NeurIPS 2020",
            "focal(gamma=3.0)",
        ),
        "flsd": TrainingLoss(
            FLSDLoss,
            "Focal loss with a larger exponent for samples whose true class is still improbable.",
            "Mukhoti et al., NeurIPS 2020",
            "flsd",
        ),
        "inverse_focal": TrainingLoss(
            InverseFocalLoss,
            "Cross-entropy with more weight on confident correct samples, against underconfidence.",
            "Wang et al., NeurIPS 2021",
            "inverse_focal(gamma=1.0)",
        ),
        "dual_focal": TrainingLoss(
            DualFocalLoss,
            "Focal loss that fades out with the lead over the strongest other class, not with confidence "
            "alone.",
            "Tao et al., ICML 2023",
            "dual_focal(gamma=5.0)",
        ),
        "bsce_gra": TrainingLoss(
            BSCEGRALoss,
            "Cross-entropy whose gradient is weighted by the distance between prediction and label.",
            "Lin et al., CVPR 2025",
            "bsce_gra(gamma=4.0)",
        ),
        "brier": TrainingLoss(
            BrierLoss,
            "Squared distance between the predicted distribution and the label, at most 2.",
            "Brier, 1950",
            "brier",
        ),
        "confidence_penalty": TrainingLoss(
            ConfidencePenaltyLoss,
            "Negative entropy of the predictions: 0 for a certain one, lowest for a uniform one.",
            "Pereyra et al., ICLR workshop 2017",
            "cross_entropy + 0.1 * confidence_penalty",
        ),
        "logit_norm": TrainingLoss(
            LogitNormLoss,
            "Cross-entropy of normalised logits: longer logits do not lower it.",
            "Wei et al., ICML 2022",
            "logit_norm",
        ),
        "mbls": TrainingLoss(
            MbLSLoss,
            "How far logits lie below the largest one, beyond a margin.",
            "Liu et al., CVPR 2022",
            "cross_entropy + 0.1 * mbls",
        ),
        "mmce": TrainingLoss(
            MMCELoss,
            "How far samples of similar confidence are miscalibrated in the same direction.",
            "Kumar et al., ICML 2018",
            "cross_entropy + 2.0 * mmce",
        ),
        "mmce_seca": TrainingLoss(
            MMCELoss,
            "MMCE with the weight of SECA's tables except that of ImageNet.",
            "baseline of SECA, Tables 1, 3, 5 to 7",
            "cross_entropy + 4.0 * mmce_seca",
        ),
        "dca": TrainingLoss(
            DCALoss,
            "Distance between the mean confidence of the batch and its accuracy.",
            "Liang et al., BMVC 2020",
            "cross_entropy + 1.0 * dca",
        ),
        "mdca": TrainingLoss(
            MDCALoss,
            "Difference between the predicted and the actual frequency of a class, averaged over classes.",
            "Hebbalaguppe et al., CVPR 2022",
            "focal(gamma=1.0) + 1.0 * mdca",
        ),
        "kde": TrainingLoss(
            KDELoss,
            "Distance between each prediction and the outcomes of similar predictions in the batch.",
            "Popordanoska et al., NeurIPS 2022",
            "cross_entropy + 0.2 * kde",
        ),
        "kde_paper": TrainingLoss(
            KDELoss,
            "KDE-XE as printed: whole distributions are compared, not confidences.",
            "Popordanoska et al., NeurIPS 2022; baseline of selective risk (AU)",
            "cross_entropy + 0.3 * kde_paper",
            {"mode": "canonical"},
        ),
        "soft_ece": TrainingLoss(
            SoftECELoss,
            "Mean gap between confidence and accuracy over bins with soft membership.",
            "Karandikar et al., NeurIPS 2021",
            "cross_entropy + 1.0 * soft_ece",
        ),
        "charbonnier": TrainingLoss(
            CharbonnierLoss,
            "Soft-binned calibration error with a gradient that fades as the gap of a bin closes.",
            "SMART, Eq. 6",
            "cross_entropy + 1.0 * charbonnier",
        ),
        "crl": TrainingLoss(
            CRLLoss,
            "How far confidences deviate from the order in which samples were learned.",
            "Moon et al., ICML 2020",
            "cross_entropy + 1.0 * crl",
        ),
        "calfocal": TrainingLoss(
            CalFocalLoss,
            "Focal loss that fades out where probabilities exceed the accuracy on validation.",
            "AdaFocal, Sec. 4",
            "calfocal",
        ),
        "adafocal": TrainingLoss(
            AdaFocalLoss,
            "Focal or inverse focal loss whose exponents follow the calibration on validation.",
            "AdaFocal, NeurIPS 2022",
            "adafocal",
        ),
        "seca": TrainingLoss(
            SECALoss,
            "Cross-entropy against the label plus the mean prediction for samples of that class in the "
            "batch.",
            "SECA",
            "seca",
        ),
        "selective_risk": TrainingLoss(
            SelectiveRiskLoss,
            "Cross-entropy with a larger weight for samples that are more confident within the batch.",
            "selective risk (AU)",
            "selective_risk",
        ),
        "selective_risk_paper": TrainingLoss(
            SelectiveRiskLoss,
            "The selective risk loss as printed, with all of its gradient and the settings for CIFAR-10.",
            "selective risk (AU), Eq. 36, Table 3 and Appendix E.2",
            "selective_risk_paper",
            {"score": "msp", "coverage": 0.75, "nu": 0.1, "weight_gradient": 1.0, "raw_scale": True},
        ),
        "aurc": TrainingLoss(
            AURCLoss,
            "Mean cross-entropy of the accepted samples, averaged over all coverages.",
            "selective risk (AU), Sec. 3",
            "aurc",
        ),
        "refinement": TrainingLoss(
            RefinementLoss,
            "How much closer the nearest sample of another class is than the nearest of the same class.",
            "RefCal",
            "refinement",
        ),
        "supervised_contrastive": TrainingLoss(
            SupervisedContrastiveLoss,
            "Pull samples of one class together on the unit sphere and push all others away.",
            "Khosla et al., NeurIPS 2020",
            "supervised_contrastive",
        ),
    },
)


def make_loss(
    text: str,
    *,
    n_classes: int | None = None,
    n_samples: int | None = None,
    others: Mapping[str, Callable[..., Loss]] | None = None,
) -> Loss:
    """Make a loss from its name or from a sum such as ``"focal(gamma=3) + 0.5 * mdca"``.

    Args:
        text: A name or a sum. A bare name stands for its recipe: ``"mmce"`` is cross-entropy plus that term.
        n_classes: Number of classes, for the losses that store something for each class.
        n_samples: Number of training samples, for the losses that store something for each sample.
        others: What makes further losses, by name.

    Example:
        >>> make_loss("mdca")
        FocalLoss(gamma=1.0) + MDCALoss()
    """
    sizes = {"n_classes": n_classes, "n_samples": n_samples}
    makers = {name: _maker(name, loss, sizes) for name, loss in LOSSES.items()} | dict(others or {})
    recipe = LOSSES[text.strip()].recipe if text.strip() in LOSSES else text
    return parse_loss(recipe, makers)


def reads_embeddings(loss: Loss) -> bool:
    """Return whether a loss compares the embeddings of samples instead of reading their logits.

    Example:
        >>> reads_embeddings(make_loss("refinement"))
        True
    """
    return any(isinstance(each, EmbeddingLoss) for each in loss.modules())


def _maker(name: str, loss: TrainingLoss, sizes: Mapping[str, int | None]) -> Callable[..., Loss]:
    def make(**options: Any) -> Loss:  # noqa: ANN401  # each loss has its own
        options = {size: sizes[size] for size in loss.sizes} | options
        missing = [size for size in loss.sizes if options[size] is None]
        if missing:
            raise InputError(
                f"loss: {name} needs {missing[0]}; pass it as an argument, e.g. "
                f'make_loss("{name}", {missing[0]}=10)'
            )
        return loss.make(**options)

    return make
