"""The script that draws charts: bundled once, then read from the user's cache if it is whole."""

import altair as alt
import pytest
import vl_convert

from calibrant.report.charts import specifications
from calibrant.report.drawing_library import cache_path, drawing_library

SCRIPT = "window.vegaEmbed = vegaEmbed; // a bundle with é and\r\ntwo lines"


@pytest.fixture
def bundled(monkeypatch, tmp_path):
    """Count the bundles; the cache is a new folder."""
    calls = []

    def bundle(snippet):
        calls.append(snippet)
        return SCRIPT

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    yield calls
    drawing_library.cache_clear()


def library():
    """Return the library as a new process would."""
    drawing_library.cache_clear()
    return drawing_library()


def test_the_script_is_bundled_once_and_then_read(bundled, tmp_path):
    assert [library(), library()] == [SCRIPT, SCRIPT]
    assert len(bundled) == 1
    assert cache_path().parent == tmp_path / "cache" / "calibrant"
    assert [each.name for each in cache_path().parent.iterdir()] == [cache_path().name]
    assert cache_path().name.startswith("vega-1.")


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole + b" ",
        lambda whole: whole.replace(b"two", b"six"),
        lambda whole: whole.split(b"\n", 1)[1],
        lambda _: b"",
        lambda _: b"\xff\xfe\n\xff",
    ],
)
def test_a_damaged_file_is_bundled_again_and_replaced(bundled, damage):
    library()
    whole = cache_path().read_bytes()
    cache_path().write_bytes(damage(whole))
    assert library() == SCRIPT
    assert len(bundled) == 2
    assert cache_path().read_bytes() == whole


def test_without_a_folder_that_can_be_written_there_is_no_cache_and_no_error(bundled, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    assert [library(), library()] == [SCRIPT, SCRIPT]
    assert len(bundled) == 2
    (tmp_path / "cache").unlink()
    cache_path().mkdir(parents=True)
    assert library() == SCRIPT
    assert not list(cache_path().iterdir())


@pytest.mark.parametrize("named", ["", "relative/folder"])
def test_the_cache_is_below_the_home_folder_unless_a_whole_path_is_named(monkeypatch, named, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path().parent == tmp_path / ".cache" / "calibrant"


@pytest.mark.usefixtures("bundled")
def test_without_a_home_folder_there_is_no_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", no_home)
    assert cache_path() is None
    assert library() == SCRIPT


@pytest.mark.usefixtures("bundled")
def test_a_script_that_would_end_its_tag_is_refused(monkeypatch):
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda _: "'</SCRIPT>'")
    with pytest.raises(AssertionError, match="a tag that would end the script"):
        library()
    assert not cache_path().exists()


@pytest.mark.parametrize("scores", [(), ("msp", "energy")])
def test_the_charts_are_valid_by_the_schema_of_altair(scores):
    for chart in specifications(scores).values():
        assert alt.LayerChart.from_dict(chart).to_dict()["layer"]
    broken = specifications(scores)["risk"]
    broken["layer"][0]["mark"]["type"] = "no such mark"
    with pytest.raises(Exception, match="Failed validating"):
        alt.LayerChart.from_dict(broken)
