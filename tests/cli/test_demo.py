"""``calibrant demo``: the main job on what comes with the package."""

import re


def test_the_demo_shows_a_real_network_before_and_after(run):
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    assert "Overconfident" in out
    assert out.count("measure") == 2
    before, after = map(float, re.search(r"ECE, equal width +(\S+) % +(\S+) %", out).groups())
    assert after < before / 2
    assert "after temperature scaling: █ accuracy" in out


def test_the_version_is_printed(run):
    from calibrant import __version__

    assert run("--version")[:2] == (0, f"calibrant {__version__}\n")
