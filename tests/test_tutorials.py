"""The tutorials run, and their pages, pictures and notebooks show what they give."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests import hostile

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tutorials"
NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")

spec = importlib.util.spec_from_file_location("tutorials", ROOT / "scripts" / "tutorials.py")
tutorials = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tutorials)

PAGES = {page.stem: page for page in tutorials.pages()}
# Packages that not everybody installs.
NEEDED = {
    "repair-a-network": ("onnxruntime", "onnxscript"),
    "train-for-confidence": ("lightning", "transformers"),
}


def same(ours, page):
    """Check that texts have the same words and about the same numbers: other machines round otherwise."""
    assert NUMBER.sub("#", ours) == NUMBER.sub("#", page)
    numbers = ([float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (ours, page))
    first, second = numbers
    assert first == pytest.approx(second, rel=0.1, abs=0.03)


def words_of_picture(content):
    """Return the texts of an SVG, in order."""
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", content))


def words_of_html(content):
    """Return the texts of a piece of HTML."""
    return "\n".join(re.findall(r">([^<]+)<", content.rpartition("</style>")[2]))


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated")
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_runs_and_gives_what_its_page_shows(name, tmp_path):
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    for cell, output in tutorials.run(PAGES[name]):
        same(output.text, cell.text)
        same(words_of_html(output.html), words_of_html(cell.html))
        assert output.html.partition("</style>")[0] == cell.html.partition("</style>")[0]
        assert (output.display is None) == (cell.picture == "")
        if output.display is not None:
            output.display.save(tmp_path / "drawn.svg")
            drawn, shown = (
                path.read_text(encoding="utf-8") for path in (tmp_path / "drawn.svg", FOLDER / cell.picture)
            )
            same(words_of_picture(drawn), words_of_picture(shown))


@pytest.mark.parametrize("name", PAGES)
def test_the_notebook_of_a_page_is_up_to_date_and_has_no_outputs(name):
    text = PAGES[name].with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == tutorials.notebook(PAGES[name]), "run: python scripts/tutorials.py --notebooks"
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in code)
    cells = list(tutorials.cells(PAGES[name].read_text(encoding="utf-8")))
    assert ["".join(cell["source"]) for cell in code] == [cell.code.strip() for cell in cells]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_idea_from_data_to_a_decision_with_a_picture(name):
    text = PAGES[name].read_text(encoding="utf-8")
    assert "?" in text.partition("\n## ")[0]
    assert "\n## The decision\n" in text
    pictures = [cell for cell in tutorials.cells(text) if cell.picture]
    assert pictures
    for cell in pictures:
        content = (FOLDER / cell.picture).read_bytes()
        assert b"<text" in content
        assert len(content) < 100_000
        assert len(cell.words) > 10
    prose = re.sub(r"```.*?```|<div.*?shown -->", "", text, flags=re.DOTALL)
    assert len(prose.split()) < 900
    assert max(map(len, re.findall(r"^```python\n(.*?)```", text, re.MULTILINE | re.DOTALL))) < 2200
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert f"]({name}.md)" in index
    assert f"]({name}.ipynb)" in index


def test_no_picture_and_no_notebook_is_left_over():
    used = {
        cell.picture for page in PAGES.values() for cell in tutorials.cells(page.read_text(encoding="utf-8"))
    }
    assert {f"pictures/{path.name}" for path in (FOLDER / "pictures").iterdir()} == used - {""}
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == PAGES.keys()


def test_a_page_whose_output_changed_is_noticed():
    same("ECE 0.120, 1,000 rows", "ECE 0.121, 1,000 rows")
    with pytest.raises(AssertionError):
        same("ECE 0.120", "ECE 0.520")
    with pytest.raises(AssertionError):
        same("alarm: False", "alarm: True")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
@pytest.mark.long
def test_a_kernel_shows_results_figures_and_a_bar_that_goes_away(tmp_path, monkeypatch):
    """One notebook as a reader runs it, with a cell that shows progress."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.reads(tutorials.notebook(PAGES["language-model"]), as_version=4)
    bar = (
        "from calibrant.progress import progress_bar\n"
        "with progress_bar() as progress:\n"
        "    again = compare(answers, methods='platt', n_resamples=50, progress=progress)\n"
        "    progress('nearly done', 9, 10)\n"
        "    import time; time.sleep(0.2); progress('<done>', 10, 10)"
    )
    code = [place for place, cell in enumerate(book.cells) if cell.cell_type == "code"]
    book.cells.insert(code[-1] + 1, nbformat.v4.new_code_cell(bar))
    client = nbclient.NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [
        each for each in outputs if each.output_type in ("error", "stream") and each.get("name") == "stderr"
    ]
    pages = [each.data for each in outputs if "data" in each]
    assert sum("image/png" in page for page in pages) == 2
    tables = [page["text/html"] for page in pages if "Comparison" in page.get("text/html", "")]
    assert hostile.Tags(tables[0]).counts["table"] == 1
    assert pages[-1].get("text/html") == ""  # the bar is gone
