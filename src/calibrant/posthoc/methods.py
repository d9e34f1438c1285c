"""The table of post-hoc methods, from simple to complex."""

from calibrant.posthoc.bbq import BBQ
from calibrant.posthoc.beta import BetaCalibration
from calibrant.posthoc.calibrator import Identity
from calibrant.posthoc.class_temperature import ClassTemperatureScaling
from calibrant.posthoc.combination import Combination
from calibrant.posthoc.dirichlet import DirichletCalibration
from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.feature_clipping import FeatureClipping
from calibrant.posthoc.group import GroupCalibration
from calibrant.posthoc.histogram import HistogramBinning
from calibrant.posthoc.intra_order import IntraOrderPreserving
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.local_temperature import LocalTemperature
from calibrant.posthoc.logistic_spline import LogisticSpline
from calibrant.posthoc.matrix import MatrixScaling
from calibrant.posthoc.metacal import MetaCal
from calibrant.posthoc.monotone import MonotoneScaling
from calibrant.posthoc.names import COMBINATION, METHODS, POOL, SEGMENTS, Method
from calibrant.posthoc.parameterized import ParameterizedTemperatureScaling, PTSPaper
from calibrant.posthoc.platt import PlattScaling
from calibrant.posthoc.pool import Pool
from calibrant.posthoc.proximity import ProximityCalibration
from calibrant.posthoc.quadratic import QuadraticCalibration
from calibrant.posthoc.segments import SegmentCalibration
from calibrant.posthoc.simplex_isotonic import SimplexIsotonicCalibration
from calibrant.posthoc.smart import SMART, SMARTPaper
from calibrant.posthoc.spline import SplineCalibration
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.posthoc.structured_smart import StructuredSMART, StructuredVectorSMART
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.vector import VectorScaling
from calibrant.posthoc.venn_abers import VennAbers

__all__ = ["METHODS"]

METHODS.update(
    {
        "uncalibrated": Method(Identity, "no calibration"),
        "temperature": Method(TemperatureScaling, "Guo et al., ICML 2017"),
        "temperature_ece": Method(TemperatureScaling, "Mukhoti et al., NeurIPS 2020", {"objective": "ece"}),
        "temperature_ece_equal_mass": Method(
            TemperatureScaling, "Ghosh et al. (AdaFocal), NeurIPS 2022", {"objective": "ece_equal_mass"}
        ),
        "ensemble": Method(EnsembleTemperatureScaling, "Zhang et al., ICML 2020"),
        "spline": Method(SplineCalibration, "Gupta et al., ICLR 2021"),
        "quadratic_top": Method(
            QuadraticCalibration, "Platt scaling with a square", {"mode": "top_label"}, top_label=True
        ),
        "isotonic_top": Method(
            IsotonicCalibration, "Zadrozny & Elkan, KDD 2002", {"mode": "top_label"}, top_label=True
        ),
        "isotonic_centred_top": Method(
            IsotonicCalibration,
            "Oron & Flournoy, 2017",
            {"mode": "top_label", "centred": True},
            top_label=True,
        ),
        "logistic_spline_top": Method(
            LogisticSpline, "Lucena, arXiv 1809.07751", {"mode": "top_label"}, top_label=True
        ),
        "histogram_top": Method(
            HistogramBinning, "Zadrozny & Elkan, ICML 2001", {"mode": "top_label"}, top_label=True
        ),
        "bbq": Method(BBQ, "Naeini et al., AAAI 2015", top_label=True),
        "venn_abers": Method(VennAbers, "Vovk & Petej, UAI 2014", top_label=True),
        "smart": Method(SMART, "SMART: margin-aware per-sample temperature"),
        "smart_paper": Method(SMARTPaper, "SMART as printed"),
        "local_temperature": Method(LocalTemperature, "Ding et al., ICCV 2021, with signals for a network"),
        "parameterized": Method(ParameterizedTemperatureScaling, "Tomani et al., ECCV 2022"),
        "parameterized_paper": Method(PTSPaper, "Tomani et al., ECCV 2022, as printed", slow=True),
        "monotone": Method(MonotoneScaling, "Zhang et al. (MCCT), UAI 2025"),
        "intra_order": Method(IntraOrderPreserving, "Rahimi et al., NeurIPS 2020"),
        "simplex_isotonic": Method(SimplexIsotonicCalibration, "Arad & Rosset (SCIR), ICML 2025"),
        "structured_vector": Method(StructuredVectorScaling, "arXiv 2511.03685"),
        "vector": Method(VectorScaling, "Guo et al., ICML 2017"),
        "class_temperature": Method(ClassTemperatureScaling, "Frenkel & Goldberger, EUSIPCO 2021"),
        "class_temperature_paper": Method(
            ClassTemperatureScaling,
            "Frenkel & Goldberger, EUSIPCO 2021, as SMART runs it",
            {"max_sweeps": 5, "keep_accuracy": False},
        ),
        "group": Method(GroupCalibration, "Yang et al., 2023"),
        "group_paper": Method(
            GroupCalibration, "Yang et al., 2023, as printed", {"hard": True, "n_partitions": 20}
        ),
        "platt": Method(PlattScaling, "Platt, 1999"),
        "beta": Method(BetaCalibration, "Kull et al., AISTATS 2017"),
        "quadratic": Method(QuadraticCalibration, "Platt scaling with a square", {"mode": "one_vs_rest"}),
        "logistic_spline": Method(LogisticSpline, "Lucena, arXiv 1809.07751", {"mode": "one_vs_rest"}),
        "spline_classes": Method(
            SplineCalibration, "Gupta et al., ICLR 2021, per class", {"mode": "one_vs_rest"}
        ),
        "isotonic": Method(IsotonicCalibration, "Zadrozny & Elkan, KDD 2002", {"mode": "one_vs_rest"}),
        "isotonic_centred": Method(
            IsotonicCalibration, "Oron & Flournoy, 2017", {"mode": "one_vs_rest", "centred": True}
        ),
        "histogram": Method(HistogramBinning, "Zadrozny & Elkan, ICML 2001", {"mode": "one_vs_rest"}),
        "structured_vector_smart": Method(StructuredVectorSMART, "structured vector scaling, then SMART"),
        "structured_matrix_paper": Method(StructuredMatrixScaling, "arXiv 2511.03685", {"strength": 1.0}),
        "structured_matrix": Method(StructuredMatrixScaling, "arXiv 2511.03685"),
        "structured_smart": Method(StructuredSMART, "structured matrix scaling, then SMART"),
        "matrix": Method(MatrixScaling, "Guo et al., ICML 2017"),
        "dirichlet": Method(DirichletCalibration, "Kull et al., NeurIPS 2019"),
        COMBINATION: Method(Combination, "logistic regression on splines of several signals"),
        SEGMENTS: Method(SegmentCalibration, "Tax et al. (MCGrad), arXiv 2509.19884"),
        "proximity": Method(ProximityCalibration, "Xiong et al., NeurIPS 2023"),
        "proximity_bins": Method(
            ProximityCalibration, "Xiong et al., NeurIPS 2023", {"variant": "bin_mean_shift"}
        ),
        "proximity_paper": Method(
            ProximityCalibration, "Xiong et al., NeurIPS 2023, as printed", {"fallback": False}
        ),
        "feature_clipping": Method(FeatureClipping, "Tao et al., AAAI 2025"),
        "metacal": Method(MetaCal, "Ma & Blaschko, ICML 2021"),
        "metacal_accuracy": Method(MetaCal, "Ma & Blaschko, ICML 2021", {"variant": "accuracy"}),
        POOL: Method(Pool, "mixture of the other methods that are compared"),
    }
)
