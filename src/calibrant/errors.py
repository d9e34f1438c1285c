"""What Calibrant raises: one sentence naming the argument, what was expected, what came, what to do."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class CalibrantError(Exception):
    """The base of Calibrant's errors; the command line prints one as a single line."""


class InputError(CalibrantError, ValueError):
    """An argument has an invalid type, shape or value."""


class FitError(CalibrantError, RuntimeError):
    """A calibrator cannot be fitted to the data."""


class FormatError(CalibrantError, ValueError):
    """A file has another format or content than expected."""


class MissingPackageError(CalibrantError, ImportError):
    """An optional package is not installed.

    Args:
        purpose: What needs the package; the message begins with it.
        package: The name of the package.
        extra: The extra of Calibrant that contains it.
        command: The command that installs it, if no extra contains it.
    """

    def __init__(self, purpose: str, package: str, extra: str = "", *, command: str = "") -> None:
        how = command or f"pip install 'calibrant[{extra}]'"
        super().__init__(f"{purpose}: expected the package {package}, got none; install it with: {how}")

    def __reduce__(self) -> tuple[object, ...]:
        # A worker process sends its errors to the process that started it.
        return _with_message, (type(self), str(self))


def _with_message(kind: type[MissingPackageError], message: str) -> MissingPackageError:
    error = kind.__new__(kind)
    ImportError.__init__(error, message)
    return error


def did_you_mean(word: str, known: Iterable[object]) -> str:
    """Return the end of an error message that names the nearest known word, or nothing.

    Example:
        >>> did_you_mean("digit", ["digits", "cifar10"])
        "; did you mean 'digits'?"
        >>> did_you_mean("auroc", ["aurc", "auroc_ovo", "auroc_ovr"])
        "; did you mean 'auroc_ovo' or 'auroc_ovr'?"
    """
    longer = [str(each) for each in known if word and str(each).startswith(f"{word}_")]
    if 0 < len(longer) <= _FEW:
        return f"; did you mean {' or '.join(map(repr, longer))}?"
    near = get_close_matches(word, [str(each) for each in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names with commas for an error message, long ones cut, and how many more there are.

    Example:
        >>> listed(["cat", "dog", "fox"], most=2)
        'cat, dog and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    lines = (name if name.isprintable() else repr(name)[1:-1] for name in names[:most])
    shown = (name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in lines)
    return (", ".join(shown) or "nothing") + more


_LONGEST = 80
_FEW = 4
