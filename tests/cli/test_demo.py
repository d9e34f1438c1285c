"""``calibrant demo``: the predictions that come with the package, before and after calibration."""

import re
import sys
from functools import partial

import pytest

from calibrant.data import load_bundled
from calibrant.evaluation import compare


@pytest.mark.slow
def test_the_demo_shows_a_real_network_before_and_after_and_writes_the_report(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fewer(name):
        """Load a fifth of the validation set, on which fits take a fifth of the time."""
        predictions = load_bundled(name)
        return predictions.take(range(1000)) if name == "cifar10_val" else predictions

    monkeypatch.setattr("calibrant.data.bundled.load_bundled", fewer)
    module = sys.modules["calibrant.evaluation.compare"]  # the package has a function of the same name
    monkeypatch.setattr(module, "compare", partial(compare, methods=["uncalibrated", "temperature", "smart"]))
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    assert "Overconfident: mean confidence 94.5 %, accuracy 82.2 %." in out
    before, after = (
        float(re.search(rf"{name} +\S+ +\S+ +\S+ +(\S+)", out)[1]) for name in ("uncalibrated", "→ \\w+")
    )
    assert after < before / 3
    assert "before: █ accuracy" in out
    assert "The same images under noise" in out
    assert "calibrant-demo/report.html" in out
    page = (tmp_path / "calibrant-demo" / "report.html").read_text(encoding="utf-8")
    assert "Under distribution shift" in page


def test_the_version_is_printed(run):
    from calibrant._version import __version__

    assert run("--version")[:2] == (0, f"calibrant {__version__}\n")
