"""Post-hoc methods by name: what a name means, and which methods are meant by default.

The table of the methods themselves, ``methods.py``, fills the catalogue, so that methods that hold others can
look these up.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from calibrant.catalogue import Catalogue, LateCatalogue
from calibrant.docstrings import Option, call, description, options_of, summary
from calibrant.errors import InputError, did_you_mean
from calibrant.expressions import Term, parse_term
from calibrant.inputs import ArrayLike
from calibrant.outcomes import refused_weights
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.score_map import ScoreMap
from calibrant.posthoc.fitting_set import FittingSet, Rows

# Arguments of ``fit`` that are no options.
_OF_EVERY_METHOD = ("logits", "labels")


@dataclass(frozen=True)
class Method:
    """A post-hoc method by name: a calibrator, and the options that make it this variant.

    Attributes:
        calibrator: The class that is fitted.
        paper: Who proposed the method, and where.
        options: Options of the class's ``fit``.
        top_label: Whether these options calibrate the confidence in the predicted class only.
        slow: Whether a fit takes minutes; ``"all"`` leaves such a method out.
    """

    calibrator: type[Calibrator]
    paper: str
    options: Mapping[str, Any] = field(default_factory=dict)
    top_label: bool = False
    slow: bool = False

    @property
    def meaning(self) -> str:
        """What the method does, in one sentence: the first line of the calibrator's docstring."""
        return summary(self.calibrator)

    @property
    def explanation(self) -> str:
        """Formula and description from the docstrings of the class and of its ``fit``, as plain text."""
        of_class, fit = description(self.calibrator), self.calibrator.fit
        return "\n\n".join(filter(None, (of_class, f"Fit: {summary(fit)}", description(fit))))

    @property
    def option_details(self) -> tuple[Option, ...]:
        """The options of ``fit`` with the defaults of this variant and their meaning."""
        options = options_of(self.calibrator.fit, given=self.options, leave_out=())
        return tuple(option for option in options if option.name in self.option_names)

    @property
    def python(self) -> str:
        """How the method is fitted in Python."""
        return call(f"{self.calibrator.__name__}.fit", self._arguments, self.options)

    @property
    def _arguments(self) -> tuple[str, ...]:
        return ("logits", "labels", *(("features=features",) if self.calibrator.needs_features else ()))

    @property
    def preserves_accuracy(self) -> bool:
        """Whether the predicted class can never change, as with every map of the top label's confidence."""
        if issubclass(self.calibrator, ScoreMap) and "mode" in self.options:
            return bool(self.options["mode"] == "top_label")
        return self.top_label or self.calibrator.preserves_accuracy

    @property
    def takes_weights(self) -> bool:
        """Whether samples can have weights; a method without this refuses them."""
        return self.calibrator.takes_weights

    @property
    def takes_masked(self) -> bool:
        """Whether classes can be masked by logits of ``-inf``; a method without this refuses them."""
        return self.calibrator.masks

    @property
    def option_names(self) -> tuple[str, ...]:
        """The options of the class's ``fit``, beside what every method takes."""
        return tuple(
            name
            for name, each in inspect.signature(self.calibrator.fit).parameters.items()
            if each.kind is not each.VAR_KEYWORD and name not in _OF_EVERY_METHOD
        )

    def with_options(self, options: Mapping[str, Any]) -> "Method":
        """Return the method with other options beside its own."""
        top_label = self.top_label
        if "mode" in options and issubclass(self.calibrator, ScoreMap):
            top_label = options["mode"] == "top_label"
        return replace(self, options={**self.options, **options}, top_label=top_label)

    def fit(
        self,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        **rows: Unpack[Rows],
    ) -> Calibrator:
        """Fit the calibrator with the options of this variant, and others that are given."""
        fit: Any = self.calibrator.fit  # each method has options of its own
        calibrator: Calibrator = fit(logits, labels, **rows, **{**self.options, **(options or {})})
        return calibrator


#: All post-hoc methods by name, from simple to complex: of equally good methods, the first is chosen.
METHODS: Catalogue[Method] = LateCatalogue(
    "methods", "the name of a method", home="calibrant.posthoc.methods"
)


def method_named(name: str) -> Method:
    """Return the method of a name, or its variant with the options that follow in parentheses.

    Example:
        >>> method_named("smart(settled=0)").options
        {'settled': 0}
    """
    term = method_term(name)
    method = METHODS[term.name]
    return method.with_options(term.options) if term.options else method


def variant_of(name: str) -> str | None:
    """Return the method that a method is a variant of, by its options or as printed; None if there is none.

    Example:
        >>> variant_of("smart_paper"), variant_of("temperature_ece"), variant_of("smart")
        ('smart', 'temperature', None)
    """
    method = METHODS[name]
    if not method.options:
        printed = name.removesuffix("_paper")
        return printed if printed != name else None
    plain = (each for each, other in METHODS.items() if other.calibrator is method.calibrator)
    return next((each for each in plain if not METHODS[each].options), None)


def canonical_name(name: str) -> str:
    """Return the name of a method as results show it; unknown names and options are refused.

    Example:
        >>> canonical_name("smart( settled=0,epochs = 50 )")
        'smart(settled=0, epochs=50)'
    """
    return method_term(name).text


def method_term(text: str, expected: str = "the name of a method") -> Term:
    """Read the name of a method with its options; refuse names and options that do not exist."""
    if text in METHODS:
        return Term(text, {}, text)
    term = parse_term(text)
    if term is None:
        raise InputError(f"methods: expected {expected}, such as 'smart(settled=0)', got {text!r}")
    if term.name not in METHODS:
        raise METHODS.refusal(term.name, expected=expected)
    options = METHODS[term.name].option_names
    for name in term.options:
        if name not in options:
            taken = f"the options {', '.join(options)}" if options else "no options"
            raise InputError(
                f"methods: expected {taken} for {term.name}, got {name!r}{did_you_mean(name, options)}"
            )
    return term


# The name of the mixture of all methods that are compared.
POOL = "pool"

# The name of the method that combines several signals of a black box.
COMBINATION = "combination"

# The name of the method that finds segments of features, or of signals, by itself.
SEGMENTS = "segments"

# The name of that mixture with a correction for each group of samples.
BY_GROUP = "by_group"

# The methods that are compared by default, as docs/results/arena.md shows. Maps of every class help most with
# two classes. A matrix has a number per pair of classes; with many classes it is slow to fit, and the samples
# are too few for it.
_MANY_CLASSES = 300
_FAST = ("uncalibrated", "temperature", "ensemble", "spline", "smart", POOL)
_AUTO_BINARY = (
    *("uncalibrated", "temperature", "ensemble", "smart", "intra_order", "platt", "beta", "quadratic"),
    *("logistic_spline", "structured_matrix", "structured_smart", POOL),
)
_AUTO_KEEP_ACCURACY = (
    *("uncalibrated", "temperature", "ensemble", "quadratic_top", "smart", "intra_order"),
    POOL,
)
_AUTO = (*_FAST, "intra_order", "beta", "structured_matrix_paper", "structured_smart")
# Confidences of black boxes: all that can be fitted to them, and those that are compared by default, as
# docs/results/llm.md shows. Maps of the top label become maps of the confidence itself.
_PAIRS = (
    *("uncalibrated", "temperature", "spline", "bbq", "venn_abers", "smart", "platt", "beta", "quadratic"),
    *("logistic_spline", "isotonic", "isotonic_centred", "histogram", "structured_smart", POOL),
)
_AUTO_PAIRS = (
    *("uncalibrated", "temperature", "platt", "beta", "quadratic", "logistic_spline"),
    *("isotonic", "isotonic_centred", "histogram", POOL),
)
_FAST_PAIRS = ("uncalibrated", "temperature", "platt", "beta", "quadratic", "isotonic_centred", POOL)
# A score has no zero that means one half.
_KEEP_ZERO = ("uncalibrated", "temperature", "temperature_ece", "temperature_ece_equal_mass", "ensemble")
_OF_EACH_CLASS = ("structured_vector", "structured_vector_smart")
_AUTO_MANY_CLASSES = (*_FAST, *_OF_EACH_CLASS)


def automatic_methods() -> list[str]:
    """Return the methods that ``"auto"`` compares for some number of classes, from simple to complex."""
    meant = {*_AUTO, *_AUTO_BINARY, *_AUTO_KEEP_ACCURACY, *_AUTO_MANY_CLASSES}
    return [name for name in METHODS if name in meant]


def why_not_automatic(name: str, n: int, n_classes: int) -> str:
    """Return why a method that ``"auto"`` means cannot gain; an empty string if it can.

    Example:
        >>> why_not_automatic("structured_vector", 200, 10_000)
        'it learns numbers of each of 10,000 classes, of which 200 samples show few'
    """
    if name not in _OF_EACH_CLASS or n >= n_classes:
        return ""
    return f"it learns numbers of each of {n_classes:,} classes, of which {n:,} samples show few"


def method_for_pairs(name: str) -> Method:
    """Return the method of a name as it repairs the confidences of a black box.

    Maps of the top label map the confidence itself, and the pool mixes methods for confidences.

    Example:
        >>> method_for_pairs("spline").options
        {'mode': 'one_vs_rest'}
    """
    resolve_for_pairs(name)
    method = method_named(name)
    if name == POOL:
        return method.with_options({"methods": [each for each in _AUTO_PAIRS if each != POOL]})
    return method.with_options({"mode": "one_vs_rest"}) if "mode" in method.option_names else method


def resolve_for_pairs(
    methods: str | Sequence[str], *, fast: bool = False, signals: bool = False, score: bool = False
) -> list[str]:
    """Return the names meant by ``"auto"``, ``"all"``, a name or several, for confidences of a black box.

    Args:
        methods: What is meant.
        fast: Whether ``"auto"`` means the quick methods only.
        signals: Whether there are other signals beside the confidence, so that they can be combined.
        score: Whether it is a score on any scale, which methods that keep its zero cannot repair.
    """
    if methods in ("auto", "all"):
        meant = _PAIRS if methods == "all" else _FAST_PAIRS if fast else _AUTO_PAIRS
        more = () if not signals else (COMBINATION, SEGMENTS) if methods == "all" else (COMBINATION,)
        wanted = [name for name in METHODS if name in (*meant, *more)]
        return [name for name in wanted if not score or name not in _KEEP_ZERO]
    named = resolve_methods(methods, fast=fast)
    other = [name for name in named if method_term(name).name in _KEEP_ZERO] if score else []
    if other:
        raise InputError(
            f"methods: expected methods that find the middle of a score, got {', '.join(other)}; "
            "take platt or a spline"
        )
    other = [name for name in named if method_term(name).name not in (*_PAIRS, COMBINATION, SEGMENTS)]
    if other:
        raise InputError(
            f"methods: expected methods that repair a confidence, got {', '.join(other)}, which need class "
            f"scores; known are {', '.join(_PAIRS)}"
        )
    return named


def safe_method(names: Sequence[str], *, of_pairs: bool) -> str:
    """Return the pool's fallback method.

    Args:
        names: The methods.
        of_pairs: Whether they repair confidences of a black box: one temperature is not enough there, and
            where signals were combined, one confidence alone is not either.
    """
    if not of_pairs:
        return "temperature"
    return COMBINATION if COMBINATION in names else "platt"


def that_take_weights(names: Sequence[str], *, asked_for: bool) -> list[str]:
    """Return the methods whose samples can have weights; others are refused if they were asked for.

    Example:
        >>> that_take_weights(["uncalibrated", "venn_abers"], asked_for=False)
        ['uncalibrated']
    """
    others = [name for name in names if not method_named(name).takes_weights]
    if others and asked_for:
        raise refused_weights(" and ".join(others))
    return [name for name in names if name not in others]


def resolve_methods(
    methods: str | Sequence[str], *, n_classes: int = 2, fast: bool = False, keep_accuracy: bool = False
) -> list[str]:
    """Return the names meant by ``"auto"``, ``"all"``, a name or several, from simple to complex.

    ``"all"`` means those whose fits do not take minutes. A name may have options, as in
    ``"smart(settled=0)"``; variants of a method keep their order.

    Args:
        methods: What is meant.
        n_classes: Number of classes, on which ``"auto"`` depends.
        fast: Whether ``"auto"`` means the quick methods only.
        keep_accuracy: Whether methods that can change the predicted class are left out; named ones are
            refused.
    """
    if fast and methods != "auto":
        raise InputError(f"fast: expected auto as methods, got {_listed(methods)}; leave out one of the two")
    if methods in ("all", "auto"):
        every = [name for name, method in METHODS.items() if not method.slow]
        meant = every if methods == "all" else _automatic(n_classes, fast=fast, keep_accuracy=keep_accuracy)
        allowed = (name for name in METHODS if not keep_accuracy or _keeps_accuracy(name))
        return [name for name in allowed if name in meant]
    wanted = (methods,) if isinstance(methods, str) else tuple(methods)
    expected = "auto, all, or names of methods" if len(wanted) == 1 else "names of methods"
    terms = [method_term(name, expected) for name in wanted]
    changing = [term.text for term in terms if not _keeps_accuracy(term.text)]
    if keep_accuracy and changing:
        raise InputError(
            f"methods: expected methods that keep the predicted class, got {', '.join(changing)}; leave "
            "them out, or allow that accuracy changes"
        )
    return list(dict.fromkeys(term.text for name in METHODS for term in terms if term.name == name))


def pool_members(methods: str | Sequence[str], *, n_classes: int, keep_accuracy: bool = False) -> list[str]:
    """Return the methods that a pool mixes: those that are named beside it, or the automatic ones."""
    resolved = resolve_methods(methods, n_classes=n_classes, keep_accuracy=keep_accuracy)
    named = [name for name in resolved if name != POOL]
    return named or pool_members("auto", n_classes=n_classes, keep_accuracy=keep_accuracy)


def _keeps_accuracy(name: str) -> bool:
    """Whether the predicted class can never change; a pool of such methods keeps it too."""
    return name == POOL or method_named(name).preserves_accuracy


def _automatic(n_classes: int, *, fast: bool, keep_accuracy: bool) -> tuple[str, ...]:
    if fast:
        return _FAST
    if n_classes > _MANY_CLASSES:
        return _AUTO_MANY_CLASSES
    if keep_accuracy:
        return _AUTO_KEEP_ACCURACY
    return _AUTO_BINARY if n_classes == 2 else _AUTO


def _listed(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)
