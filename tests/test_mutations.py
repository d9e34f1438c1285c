"""The script that changes the code finds what is executed, and draws the same from two commits."""

from scripts.mutations import drawn, mutations

SOURCE = '''"""A module with 3 words."""

LIMIT: int = 10


def clipped(value: float, low: float = 0.5) -> float:
    """Return 1 of two numbers."""
    if value < low and not isinstance(value, bool):
        raise ValueError(f"expected {low + 1}, got {value - 2}" + "!")
    return max(value, low) * 2
'''


def tree(folder, source, name="clip"):
    (folder / "src" / "calibrant").mkdir(parents=True)
    (folder / "src" / "calibrant" / f"{name}.py").write_text(source)
    return folder


def test_changes_are_found_in_what_is_executed_and_nowhere_else(tmp_path):
    found = mutations(tree(tmp_path, SOURCE)).values()
    assert sorted(str(each).partition("  ->  ")[2] for each in found) == [
        "LIMIT: int = 11",
        "def clipped(value: float, low: float = 1.0) -> float:",
        "if value < low and isinstance(value, bool):",
        "if value < low and not isinstance(bool, value):",
        "if value < low or not isinstance(value, bool):",
        "if value <= low and not isinstance(value, bool):",
        "return max(low, value) * 2",
        "return max(value, low) * 3",
        "return max(value, low) / 2",
    ]
    for each in found:
        changed = each.apply(SOURCE).splitlines()
        assert changed[each.row - 1].strip() == str(each).partition("  ->  ")[2]
        compile("\n".join(changed), each.file, "exec")


def test_a_file_that_moved_and_lines_above_do_not_change_what_is_drawn(tmp_path):
    before = mutations(tree(tmp_path / "a", SOURCE))
    after = mutations(tree(tmp_path / "b", SOURCE.replace("LIMIT: int = 10\n", "\n\n"), name="moved"))
    keys = before.keys() & after.keys()
    assert len(keys) == len(before) - 1
    chosen = drawn(sorted(keys), 5, seed=1)
    assert chosen == drawn(sorted(keys, reverse=True), 5, seed=1)
    assert chosen != drawn(sorted(keys), 5, seed=2)
    assert [before[key].text for key in chosen] == [after[key].text for key in chosen]
    assert {after[key].file for key in chosen} == {"src/calibrant/moved.py"}


def test_every_change_is_drawn_once(tmp_path):
    found = mutations(tree(tmp_path, SOURCE))
    assert sorted(drawn(sorted(found), 100, seed=0)) == sorted(found)
