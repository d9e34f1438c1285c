"""The folder that ``calibrate --out`` writes: results, bound to the calibrator that they are about."""

from pathlib import Path
from typing import Any

from calibrant.errors import FormatError
from calibrant.files import digest, read_json
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.files import load_calibrator

RESULTS, CALIBRATOR = "results.json", "calibrator.safetensors"
#: The key of the calibrator's digest in the results, and that of the file that it was fitted on.
DIGEST, FITTED_ON = "calibrator_digest", "fitted_on"


def calibrator_digest(calibrator: Calibrator) -> str:
    """Return the SHA-256 of the numbers of a calibrator: equal for equal fits, also after loading.

    Example:
        >>> from calibrant.posthoc import TemperatureScaling
        >>> one, same, other = (calibrator_digest(TemperatureScaling(t)) for t in (2, 2, 3))
        >>> one == same, one == other
        (True, False)
    """
    return digest(*(part for named in sorted(calibrator.state_dict().items()) for part in named))


def read_results(folder: Path) -> dict[str, Any]:
    """Read the results in a folder; refuse them if the calibrator beside them is of another run."""
    path = folder / RESULTS
    if not path.exists():
        raise FormatError(
            f"{folder}: expected a folder written by calibrant calibrate, got one without {RESULTS}"
        )
    results = read_json(path, "what calibrate wrote", dict[str, Any])
    if DIGEST in results:  # older versions have none
        _check_digest(load_calibrator(folder / CALIBRATOR), results, folder)
    return dict(results)


def load_bound_calibrator(path: Path) -> Calibrator:
    """Read a calibrator; refuse one that lies beside results of another."""
    calibrator = load_calibrator(path)
    beside = path.parent / RESULTS
    if path.name == CALIBRATOR and beside.exists():
        _check_digest(calibrator, read_json(beside, "what calibrate wrote", dict[str, Any]), path.parent)
    return calibrator


def fitted_on(path: Path) -> Path | None:
    """Return the file that a calibrator in a folder of calibrate was fitted on, if it is still there."""
    beside = path.parent / RESULTS
    if path.name != CALIBRATOR or not beside.exists():
        return None
    name = read_json(beside, "what calibrate wrote", dict[str, Any]).get(FITTED_ON)
    found = path.parent / name if isinstance(name, str) else None
    return found if found is not None and found.exists() else None


def _check_digest(calibrator: Calibrator, results: dict[str, Any], folder: Path) -> None:
    if results.get(DIGEST, "") not in ("", calibrator_digest(calibrator)):
        raise FormatError(
            f"{folder}: expected {CALIBRATOR} and {RESULTS} of one run, got a calibrator that the results "
            "are not about; run calibrant calibrate again, or move the calibrator elsewhere"
        )
