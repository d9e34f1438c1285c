"""Losses that train for calibration; each is a function and a module, a drop-in for cross-entropy."""

from calibrant.losses.adafocal import AdaFocalLoss, CalFocalLoss, adafocal_loss, calfocal_loss
from calibrant.losses.brier import BrierLoss, brier_loss
from calibrant.losses.bsce import BSCEGRALoss, bsce_gra_loss
from calibrant.losses.confidence_penalty import ConfidencePenaltyLoss, confidence_penalty_loss
from calibrant.losses.crl import CRLLoss, crl_loss
from calibrant.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from calibrant.losses.dca import DCALoss, MDCALoss, dca_loss, mdca_loss
from calibrant.losses.dual_focal import DualFocalLoss, dual_focal_loss
from calibrant.losses.focal import FLSDLoss, FocalLoss, flsd_loss, focal_loss
from calibrant.losses.inverse_focal import InverseFocalLoss, inverse_focal_loss
from calibrant.losses.kde import KDELoss, kde_loss
from calibrant.losses.label_smoothing import LabelSmoothingLoss, label_smoothing_loss
from calibrant.losses.logit_norm import LogitNormLoss, logit_norm_loss
from calibrant.losses.loss import Loss
from calibrant.losses.mbls import MbLSLoss, mbls_loss
from calibrant.losses.mmce import MMCELoss, mmce_loss
from calibrant.losses.ols import OLSLoss, ols_loss
from calibrant.losses.parts.global_batch import local_batch
from calibrant.losses.refinement import RefinementLoss, refinement_loss
from calibrant.losses.seca import SECALoss, seca_loss
from calibrant.losses.selective_risk import AURCLoss, SelectiveRiskLoss, aurc_loss, selective_risk_loss
from calibrant.losses.soft_ece import CharbonnierLoss, SoftECELoss, charbonnier_loss, soft_ece_loss
from calibrant.losses.supervised_contrastive import (
    SupervisedContrastiveLoss,
    supervised_contrastive_loss,
)

__all__ = [
    "AURCLoss",
    "AdaFocalLoss",
    "BSCEGRALoss",
    "BrierLoss",
    "CRLLoss",
    "CalFocalLoss",
    "CharbonnierLoss",
    "ConfidencePenaltyLoss",
    "CrossEntropyLoss",
    "DCALoss",
    "DualFocalLoss",
    "FLSDLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "KDELoss",
    "LabelSmoothingLoss",
    "LogitNormLoss",
    "Loss",
    "MDCALoss",
    "MMCELoss",
    "MbLSLoss",
    "OLSLoss",
    "RefinementLoss",
    "SECALoss",
    "SelectiveRiskLoss",
    "SoftECELoss",
    "SupervisedContrastiveLoss",
    "adafocal_loss",
    "aurc_loss",
    "brier_loss",
    "bsce_gra_loss",
    "calfocal_loss",
    "charbonnier_loss",
    "confidence_penalty_loss",
    "crl_loss",
    "cross_entropy_loss",
    "dca_loss",
    "dual_focal_loss",
    "flsd_loss",
    "focal_loss",
    "inverse_focal_loss",
    "kde_loss",
    "label_smoothing_loss",
    "local_batch",
    "logit_norm_loss",
    "mbls_loss",
    "mdca_loss",
    "mmce_loss",
    "ols_loss",
    "refinement_loss",
    "seca_loss",
    "selective_risk_loss",
    "soft_ece_loss",
    "supervised_contrastive_loss",
]
