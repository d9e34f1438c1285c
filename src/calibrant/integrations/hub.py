"""A folder for the Hugging Face Hub: a calibrator, what it takes, and a card that shows what it repairs.

Nothing is uploaded; ``huggingface-cli upload NAME FOLDER`` does that.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant._version import __version__
from calibrant.data.predictions import Predictions
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.full import verdict_sentence
from calibrant.files import make_folder, write_file
from calibrant.metrics.names import MEASURES
from calibrant.plots.reliability import ReliabilityDisplay
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence import ConfidenceCalibrator, ScoreCalibrator
from calibrant.show.numbers import Cell, percent
from calibrant.show.table import Table
from calibrant.text import markdown

_SHOWN = ("accuracy", "ece", "nll", "brier")
_FILE = "calibrator.safetensors"


def write_hub_folder(
    calibrator: Calibrator,
    test: Predictions,
    folder: str | os.PathLike[str],
    *,
    name: str = "calibrator",
    data: str = "held-out predictions",
    task: str = "other",
) -> None:
    """Write ``calibrator.safetensors``, ``config.json``, the model card ``README.md`` and its pictures.

    The metadata of the card have the measures with the calibrator, as the Hub shows them.

    Args:
        calibrator: A fitted calibrator.
        test: Predictions of the model itself with labels, of which none was used for the fit.
        folder: Where to write; other files in it, such as those of git, stay as they are.
        name: What the calibrator is called, such as that of its model.
        data: What the predictions are called.
        task: The task by the Hub's names, such as ``"image-classification"``.

    Example:
        >>> from tempfile import mkdtemp
        >>> from calibrant import load_calibrator
        >>> from calibrant.posthoc import TemperatureScaling
        >>> answers = Predictions(logits=[[2.0, 0.0], [0.0, 2.0]] * 50, labels=[0, 1, 0, 0] * 25)
        >>> write_hub_folder(TemperatureScaling(2.0), answers, folder := Path(mkdtemp()) / "hub")
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'after.png', 'before.png', 'calibrator.safetensors', 'config.json']
    """
    folder, repaired = Path(folder), calibrated(calibrator, test)
    shown = [*_SHOWN, "mean_confidence"]
    measured = [evaluate(each, measures=shown).metrics for each in (test, repaired)]
    make_folder(folder, "folder")
    for when, each in (("before", test), ("after", repaired)):
        ReliabilityDisplay.from_predictions(each, title=f"{when} calibration").save(folder / f"{when}.png")
    calibrator.save(folder / _FILE)
    write_file(folder / "config.json", json.dumps(_config(calibrator), indent=2) + "\n")
    metadata = _metadata(measured[1], name=name, data=data, task=task)
    card = _card(calibrator, *measured, n=test.n, name=name, data=data)
    write_file(folder / "README.md", f"---\n{metadata}---\n\n{card}")


def _config(calibrator: Calibrator) -> dict[str, Any]:
    """Return what a program must know to use the file."""
    return {
        "library_name": "calibrant",
        "library_version": __version__,
        "file": _FILE,
        "calibrator": type(calibrator).__name__,
        "takes": _takes(calibrator),
        "n_classes": calibrator.n_classes,
        "class_names": calibrator.class_names,
        "group_names": calibrator.group_names,
        "signal_names": calibrator.signal_names,
    }


def _takes(calibrator: Calibrator) -> str:
    if isinstance(calibrator, ConfidenceCalibrator):
        return "score" if isinstance(calibrator, ScoreCalibrator) else "confidence"
    return "logits and features" if calibrator.needs_features else "logits"


def _metadata(metrics: Mapping[str, float], *, name: str, data: str, task: str) -> str:
    """Return the YAML head of the card; JSON is YAML."""
    result = {
        "task": {"type": task},
        "dataset": {"name": data, "type": data},
        "metrics": [
            {"type": key, "name": f"{MEASURES[key].title}, calibrated", "value": metrics[key]}
            for key in _SHOWN
            if key in metrics
        ],
    }
    fields = {
        "library_name": "calibrant",
        "tags": ["calibration", "uncertainty"],
        "model-index": [{"name": name, "results": [result]}],
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())


def _card(
    calibrator: Calibrator,
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    n: int,
    name: str,
    data: str,
) -> str:
    rows = [
        [MEASURES[key].title, *(_number(key, each[key]) for each in (before, after))]
        for key in _SHOWN
        if key in before
    ]
    table = Table.of(["on held-out predictions", "before", "after"], rows).to_markdown()
    use = {
        "logits": "honest = calibrator.predict_proba(logits)  # shape (n, classes)",
        "logits and features": "honest = calibrator.predict_proba(logits, features)",
    }.get(_takes(calibrator), "honest = calibrator.predict_confidence(stated)")
    return f"""# {markdown(name)}: calibrated confidence

A `{type(calibrator).__name__}` for the outputs of a model, fitted by Calibrant {__version__}.

## Calibration

Measured on {n:,} samples ({markdown(data)}).

- **Before**: {verdict_sentence(before)}
- **After**: {verdict_sentence(after)}

{table.rstrip()}

| before | after |
|---|---|
| ![Reliability before calibration](before.png) | ![Reliability after calibration](after.png) |

Confidence is honest on data like these. On other data, measure again: `calibrant evaluate`.

## Use

```python
from calibrant import load_calibrator

calibrator = load_calibrator("{_FILE}")
{use}
```
"""


def _number(key: str, value: float) -> Cell | str:
    return percent(value, 1 if key == "accuracy" else 2) if MEASURES[key].percent else f"{value:.4f}"
