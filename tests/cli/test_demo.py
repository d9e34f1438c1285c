"""``calibrant demo``: the main job on what comes with the package."""

import re


def test_the_demo_shows_a_real_network_before_and_after_and_writes_the_report(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    assert "Overconfident: it says 94.5% and is right 82.2% of the time." in out
    before, after = (
        float(re.search(rf"{name} +\S+ +\S+ +\S+ +(\S+)", out)[1]) for name in ("uncalibrated", "→ \\w+")
    )
    assert after < before / 3
    assert "before: █ accuracy" in out
    assert "The same images under noise" in out
    assert "calibrant-demo/report.html" in out
    page = (tmp_path / "calibrant-demo" / "report.html").read_text(encoding="utf-8")
    assert "On samples from elsewhere" in page


def test_the_version_is_printed(run):
    from calibrant._version import __version__

    assert run("--version")[:2] == (0, f"calibrant {__version__}\n")
