"""The catalogue of measures: one entry per measure, used by commands, tables, streams and tests."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from calibrant.bins import Bins
from calibrant.catalogue import Catalogue
from calibrant.metrics.accuracy import accuracy, confidences, hits, mean_confidence, top_k_error, top_k_misses
from calibrant.metrics.binned import (
    average_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    overconfidence,
    rms_calibration_error,
    underconfidence,
)
from calibrant.metrics.charbonnier import charbonnier_error, charbonnier_weights
from calibrant.metrics.classwise import (
    adaptive_calibration_error,
    adaptive_weights,
    classwise_calibration_error,
    classwise_weights,
    static_calibration_error,
    static_weights,
)
from calibrant.metrics.cumulative import (
    averaged_two_bin_error,
    cumulative_weights,
    ks_error,
    kuiper_error,
    two_bin_weights,
)
from calibrant.metrics.debiased import debiased_calibration_error, debiased_weights
from calibrant.metrics.decomposition import (
    brier_calibration,
    brier_calibration_weights,
    brier_refinement,
    brier_refinement_weights,
)
from calibrant.metrics.discrimination import (
    auroc_correctness,
    auroc_correctness_weights,
    auroc_ovo,
    auroc_ovo_weights,
    auroc_ovr,
    auroc_ovr_weights,
)
from calibrant.metrics.kde import kde_calibration_error
from calibrant.metrics.kernel import mmce, mmce_weights, skce
from calibrant.metrics.measure import Measure
from calibrant.metrics.positive import (
    average_precision,
    average_precision_weights,
    base_rate,
    calibration_intercept,
    calibration_intercept_weights,
    calibration_slope,
    calibration_slope_weights,
    integrated_calibration_index,
    integrated_calibration_index_weights,
    net_benefit,
    net_benefit_weights,
    positives,
    precision,
    precision_weights,
    recall,
    recall_weights,
)
from calibrant.metrics.proper import (
    brier_score,
    log_losses,
    negative_log_likelihood,
    ranked_errors,
    ranked_probability_score,
    squared_errors,
)
from calibrant.metrics.selective import (
    augrc,
    augrc_weights,
    aurc,
    aurc_weights,
    excess_aurc,
    excess_aurc_weights,
)
from calibrant.metrics.smooth_calibration import smooth_calibration_error, smooth_calibration_weights
from calibrant.metrics.smooth_ece import smooth_ece, smooth_ece_weights
from calibrant.metrics.sweep import sweep_calibration_error, sweep_weights
from calibrant.metrics.variational import variational_calibration_error, variational_terms


def _mean_over_classes(bins: Bins) -> Tensor:
    return bins.expected_gap().mean()


#: The catalogue of measures: what each name on the command line, in tables and in benchmarks stands for.
MEASURES: Catalogue[Measure] = Catalogue(
    "measures",
    "core, all, or names of measures",
    {
        "accuracy": Measure(
            accuracy, "accuracy", "accuracy", better="higher", core=True, compared=True, terms=hits
        ),
        "mean_confidence": Measure(
            mean_confidence, "mean confidence", "confidence", better="neither", core=True, terms=confidences
        ),
        "nll": Measure(
            negative_log_likelihood,
            "negative log-likelihood",
            "NLL",
            "logits",
            reads_pairs=True,
            core=True,
            compared=True,
            percent=False,
            terms=log_losses,
        ),
        "brier": Measure(
            brier_score,
            "Brier score",
            "Brier",
            "probs",
            reads_pairs=True,
            core=True,
            compared=True,
            percent=False,
            terms=squared_errors,
        ),
        "ece": Measure(
            expected_calibration_error,
            "ECE, equal width",
            "ECE",
            core=True,
            compared=True,
            takes_bins=True,
            of_bins=Bins.expected_gap,
            noise_floor=True,
        ),
        "ece_equal_mass": Measure(
            expected_calibration_error,
            "ECE, equal mass",
            "AdaECE",
            core=True,
            compared=True,
            takes_bins=True,
            options={"binning": "mass"},
            of_bins=Bins.expected_gap,
            of_ranks="equal_mass_error",
            noise_floor=True,
        ),
        "classwise_ece": Measure(
            classwise_calibration_error,
            "classwise ECE",
            "cwECE",
            "probs",
            core=True,
            compared=True,
            takes_bins=True,
            of_class_bins=_mean_over_classes,
            weighted=classwise_weights,
            noise_floor=True,
        ),
        "mce": Measure(
            maximum_calibration_error,
            "largest gap of a bin (MCE)",
            "MCE",
            core=True,
            takes_bins=True,
            of_bins=Bins.largest_gap,
            noise_floor=True,
        ),
        "aurc": Measure(
            aurc,
            "area under risk-coverage (AURC)",
            "AURC",
            core=True,
            of_ranks="aurc",
            takes_weights=False,
            weighted=aurc_weights,
        ),
        "auroc_correct": Measure(
            auroc_correctness,
            "AUROC of correctness",
            "AUROC",
            better="higher",
            core=True,
            of_ranks="auroc_correctness",
            weighted=auroc_correctness_weights,
        ),
        "top_5_error": Measure(
            top_k_error,
            "top-5 error",
            "top-5 error",
            "probs",
            options={"k": 5},
            min_classes=6,
            terms=top_k_misses,
        ),
        "smece": Measure(
            smooth_ece,
            "smooth ECE (smECE)",
            "smECE",
            compared=True,
            weighted=smooth_ece_weights,
            noise_floor=True,
        ),
        "smce": Measure(
            smooth_calibration_error,
            "smooth calibration error (smCE)",
            "smCE",
            weighted=smooth_calibration_weights,
            noise_floor=True,
            smooth=True,
        ),
        "ece_debiased": Measure(
            debiased_calibration_error,
            "debiased ECE, equal mass",
            "debiased ECE",
            takes_bins=True,
            options={"norm": "l1"},
            takes_weights=False,
            weighted=debiased_weights,
            noise_floor=True,
        ),
        "rmsce_debiased": Measure(
            debiased_calibration_error,
            "debiased RMSCE, equal mass",
            "debiased RMSCE",
            takes_bins=True,
            takes_weights=False,
            weighted=debiased_weights,
            noise_floor=True,
        ),
        "ece_sweep": Measure(
            sweep_calibration_error,
            "ECE-sweep, equal mass",
            "ECE-sweep",
            weighted=sweep_weights,
            noise_floor=True,
        ),
        "ece_sweep_width": Measure(
            sweep_calibration_error,
            "ECE-sweep, equal width",
            "ECE-sweep, width",
            options={"binning": "width"},
            weighted=sweep_weights,
            noise_floor=True,
        ),
        "rmsce": Measure(
            rms_calibration_error,
            "root mean square (RMSCE)",
            "RMSCE",
            takes_bins=True,
            of_bins=Bins.root_mean_square_gap,
            noise_floor=True,
        ),
        "ace": Measure(
            average_calibration_error,
            "average over bins (ACE)",
            "ACE",
            takes_bins=True,
            of_bins=Bins.average_gap,
            noise_floor=True,
        ),
        "ks": Measure(
            ks_error,
            "Kolmogorov-Smirnov (KS)",
            "KS",
            weighted=cumulative_weights("ks"),
            noise_floor=True,
        ),
        "kuiper": Measure(
            kuiper_error,
            "cumulative difference (Kuiper)",
            "Kuiper",
            weighted=cumulative_weights("kuiper"),
            noise_floor=True,
        ),
        "two_bin": Measure(
            averaged_two_bin_error,
            "averaged two-bin error (ATB)",
            "ATB",
            percent=False,
            of_ranks="two_bin_error",
            weighted=two_bin_weights,
            noise_floor=True,
        ),
        "variational": Measure(
            variational_calibration_error,
            "variational error (lower bound)",
            "variational",
            "probs",
            reads_pairs=True,
            takes_weights=False,
            terms=variational_terms,
            cross_fits=True,
        ),
        "variational_l1": Measure(
            variational_calibration_error,
            "variational error, all classes, L1",
            "variational L1",
            "probs",
            options={"mode": "canonical", "p": 1.0},
            takes_weights=False,
            terms=variational_terms,
            cross_fits=True,
        ),
        "variational_l2": Measure(
            variational_calibration_error,
            "variational error, all classes, L2",
            "variational L2",
            "probs",
            options={"mode": "canonical", "p": 2.0},
            takes_weights=False,
            terms=variational_terms,
            cross_fits=True,
        ),
        "mmce": Measure(
            mmce,
            "kernel error (MMCE)",
            "MMCE",
            weighted=mmce_weights,
            noise_floor=True,
            smooth=True,
        ),
        "kde_ece": Measure(
            kde_calibration_error,
            "kernel density ECE",
            "KDE-ECE",
            takes_weights=False,
            max_samples=20_000,
            noise_floor=True,
        ),
        "overconfidence": Measure(
            overconfidence,
            "overconfident part of ECE",
            "overconfidence",
            takes_bins=True,
            of_bins=Bins.overconfident_part,
            noise_floor=True,
        ),
        "underconfidence": Measure(
            underconfidence,
            "underconfident part of ECE",
            "underconfidence",
            takes_bins=True,
            of_bins=Bins.underconfident_part,
            noise_floor=True,
        ),
        "classwise_ece_equal_mass": Measure(
            classwise_calibration_error,
            "classwise ECE, equal mass",
            "cwECE, mass",
            "probs",
            takes_bins=True,
            options={"binning": "mass"},
            weighted=classwise_weights,
            noise_floor=True,
        ),
        "adaptive_ece": Measure(
            adaptive_calibration_error,
            "adaptive, per class (Nixon's ACE)",
            "Nixon's ACE",
            "probs",
            takes_bins=True,
            weighted=adaptive_weights,
            noise_floor=True,
        ),
        "sce_true_class": Measure(
            static_calibration_error,
            "SCE per true class (SECA)",
            "SCE, true class",
            "probs",
            takes_bins=True,
            options={"definition": "true_class"},
            weighted=static_weights,
        ),
        "skce": Measure(
            skce,
            "squared kernel error (SKCE)",
            "SKCE",
            "probs",
            percent=False,
            max_samples=20_000,
            takes_weights=False,
        ),
        "brier_calibration": Measure(
            brier_calibration,
            "Brier: calibration (CORP)",
            "Brier calibration",
            "probs",
            percent=False,
            weighted=brier_calibration_weights,
            noise_floor=True,
        ),
        "brier_refinement": Measure(
            brier_refinement,
            "Brier: refinement (CORP)",
            "Brier refinement",
            "probs",
            percent=False,
            weighted=brier_refinement_weights,
        ),
        "excess_aurc": Measure(
            excess_aurc,
            "excess AURC",
            "E-AURC",
            of_ranks="excess_aurc",
            takes_weights=False,
            weighted=excess_aurc_weights,
        ),
        "augrc": Measure(
            augrc, "generalised risk (AUGRC)", "AUGRC", of_ranks="augrc", weighted=augrc_weights
        ),
        "auroc_ovo": Measure(
            auroc_ovo,
            "AUROC, one against one",
            "AUROC ovo",
            "probs",
            better="higher",
            weighted=auroc_ovo_weights,
        ),
        "auroc_ovr": Measure(
            auroc_ovr,
            "AUROC, one against rest",
            "AUROC ovr",
            "probs",
            better="higher",
            weighted=auroc_ovr_weights,
        ),
        "base_rate": Measure(
            base_rate,
            "share of the positive class",
            "base rate",
            "probs",
            better="neither",
            core=True,
            max_classes=2,
            terms=positives,
        ),
        "recall": Measure(
            recall,
            "recall of the positive class",
            "recall",
            "probs",
            better="higher",
            core=True,
            max_classes=2,
            weighted=recall_weights,
        ),
        "precision": Measure(
            precision,
            "precision of the positive class",
            "precision",
            "probs",
            better="higher",
            core=True,
            max_classes=2,
            weighted=precision_weights,
        ),
        "average_precision": Measure(
            average_precision,
            "average precision",
            "AP",
            "probs",
            reads_pairs=True,
            better="higher",
            core=True,
            max_classes=2,
            weighted=average_precision_weights,
        ),
        "calibration_slope": Measure(
            calibration_slope,
            "calibration slope",
            "slope",
            "probs",
            reads_pairs=True,
            better="neither",
            percent=False,
            max_classes=2,
            weighted=calibration_slope_weights,
        ),
        "calibration_intercept": Measure(
            calibration_intercept,
            "calibration intercept",
            "intercept",
            "probs",
            reads_pairs=True,
            better="neither",
            percent=False,
            max_classes=2,
            weighted=calibration_intercept_weights,
        ),
        "ici": Measure(
            integrated_calibration_index,
            "integrated calibration index (ICI)",
            "ICI",
            "probs",
            reads_pairs=True,
            max_classes=2,
            noise_floor=True,
            weighted=integrated_calibration_index_weights,
        ),
        "net_benefit": Measure(
            net_benefit,
            "net benefit at a threshold of 10 %",
            "net benefit",
            "probs",
            reads_pairs=True,
            better="higher",
            max_classes=2,
            weighted=net_benefit_weights,
        ),
        "rps": Measure(
            ranked_probability_score,
            "ranked probability score",
            "RPS",
            "probs",
            percent=False,
            min_classes=3,
            terms=ranked_errors,
        ),
        "charbonnier": Measure(
            charbonnier_error,
            "Charbonnier H (no calibration error)",
            "Charbonnier H",
            better="neither",
            weighted=charbonnier_weights,
        ),
    },
)


def resolve_measures(measures: str | Sequence[str]) -> list[str]:
    """Return the names of measures for ``"core"``, ``"all"``, one name, or several names."""
    if measures == "core":
        return [name for name, measure in MEASURES.items() if measure.core]
    if measures == "all":
        return list(MEASURES)
    named = [measures] if isinstance(measures, str) else list(measures)
    for name in named:
        if name not in MEASURES:
            raise MEASURES.refusal(name)
    return named


def measure_of(function: Callable[..., Any]) -> Measure | None:
    """Return the first entry with this function; None if it is not in the catalogue."""
    return next((measure for measure in MEASURES.values() if measure.function is function), None)
