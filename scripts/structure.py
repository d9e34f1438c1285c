"""Print how large the source is, how deep its imports go, and how many files describe a measure.

    python scripts/structure.py                 # this checkout
    python scripts/structure.py main~20 main    # two commits side by side

- *Chain*: the longest chain of modules, each of which imports the next as soon as it is imported; imports
  inside functions and for type checking do not count.
- *Files per measure*: the file that defines it and those whose table of measures has an entry for it: the
  files to edit when a measure is added. A table of measures has at least four keys, most of them measures.
- *Repeated runs*: pairs of places with six or more consecutive lines of the same shape. Docstrings, comments,
  blank lines and imports are removed; the shape of a line has ``n`` for each name and ``0`` for each number
  or text, so that renamed copies count. Each pair is counted once, at its full length; a run must have at
  least three different shapes, so that tables of constants do not count.
- *Options*: those of every command, with ``--help`` of each; and the most that one command shows above its
  panel of columns.
- *Public names*: those in ``__all__`` of the top level and of the packages for users.
"""

import argparse
import ast
import functools
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path


def main() -> None:
    """Print one column per commit, or one for this checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", help="commits to compare")
    commits = parser.parse_args().commits
    with tempfile.TemporaryDirectory() as folder:
        sources = {commit: extract(commit, Path(folder, commit)) for commit in commits}
        facts = {name: describe(source) for name, source in (sources or {"here": Path("src")}).items()}
    for row in next(iter(facts.values())):
        print(f"{row:28}", *(f"{column[row]:>14}" for column in facts.values()))


def extract(commit: str, place: Path) -> Path:
    """Write the source of a commit to a folder."""
    packed = subprocess.run(["git", "archive", commit, "src"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")
    return place / "src"


# Modules with ``__all__`` that are not for users.
_INTERNAL = ("calibrant.papers.printed", "calibrant.posthoc.methods", "calibrant.progress", "calibrant.show")


def describe(source: Path) -> dict[str, str]:
    """Return the facts about a source folder."""
    modules = {module_name(path, source): path for path in sorted(source.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values())
    counts = files_per_measure(trees)
    return {
        "files": f"{len(modules):,}",
        "lines": f"{lines:,}",
        "lines with weights is None": str(count_lines(modules.values(), r"weights is (not )?None")),
        "lines with k is None": str(count_lines(modules.values(), r"\bk is (not )?None")),
        "longest chain of imports": str(longest_chain(trees)),
        "files per measure": f"{min(counts)} to {max(counts)}",
        "public names": str(public_names(trees)),
        "repeated runs of lines": f"{repeated_runs(list(trees.values())):,}",
        **options_of_commands(source),
    }


# Prints the number of options of all commands, and the most that one shows above its panel of columns.
_COUNT_OPTIONS = """
import typer
from calibrant.cli import app

def walk(command):
    for each in getattr(command, "commands", {}).values():
        yield from walk(each)
    if not hasattr(command, "commands"):
        yield [each for each in command.params if each.param_type_name == "option"]

found = list(walk(typer.main.get_command(app)))
above = [sum(getattr(each, "rich_help_panel", None) != "Columns" for each in options) for options in found]
print(sum(len(options) + 1 for options in found), max(above))
"""


def options_of_commands(source: Path) -> dict[str, str]:
    """Return how many options the commands of a source folder have."""
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    command = [sys.executable, "-c", _COUNT_OPTIONS]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    total, above = printed.split()
    return {"options of commands": total, "most options above columns": above}


def count_lines(paths: Iterable[Path], pattern: str) -> int:
    """Count the lines of files in which a pattern occurs."""
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return sum(re.search(pattern, line) is not None for line in lines)


def module_name(path: Path, source: Path) -> str:
    """Return the name by which a file is imported."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_names(trees: dict[str, ast.Module]) -> int:
    """Count the names in ``__all__`` of the packages for users."""
    found = {name: tree.body for name, tree in trees.items() if name not in _INTERNAL}
    lists = [each for body in found.values() for each in body if isinstance(each, ast.Assign)]
    return sum(
        len(each.value.elts)
        for each in lists
        if word(each.targets[0]) == "__all__" and isinstance(each.value, ast.List)
    )


def longest_chain(trees: dict[str, ast.Module]) -> int:
    """Return the number of modules in the longest chain of imports."""
    sys.setrecursionlimit(10_000)
    imports = {name: set(imported(tree, trees)) - {name} for name, tree in trees.items()}

    @functools.cache
    def depth(name: str) -> int:
        return 1 + max((depth(other) for other in imports[name]), default=0)

    return max(map(depth, trees))


def imported(node: ast.AST, modules: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the modules that are imported when this one is."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.module in modules:
            for alias in child.names:
                submodule = f"{child.module}.{alias.name}"
                yield submodule if submodule in modules else child.module
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in modules)
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda)) and not for_types_only(child):
            yield from imported(child, modules)


def for_types_only(node: ast.AST) -> bool:
    """Return whether a block is read by type checkers only."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def files_per_measure(trees: dict[str, ast.Module]) -> list[int]:
    """Count, for each measure, the file that defines it and those whose tables have an entry for it."""
    catalogue = next(table for name, table in tables(trees) if "ece" in table and "smce" in table)
    functions = {key: {key, function} for key, function in catalogue.items()}
    words = set().union(*functions.values())
    of_measures = [
        (module, set(table))
        for module, table in tables(trees)
        if len(table) >= 4 and 2 * len(words & set(table)) > len(table)
    ]
    return [1 + len({module for module, keys in of_measures if keys & names}) for names in functions.values()]


def tables(trees: dict[str, ast.Module]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the dictionaries that modules assign, with the function that each value names first."""
    for module, tree in trees.items():
        for statement in tree.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                for node in ast.walk(statement):
                    if isinstance(node, ast.Dict):
                        pairs = zip(map(word, node.keys), map(function, node.values), strict=True)
                        yield module, {key: value for key, value in pairs if key}


def repeated_runs(trees: list[ast.Module], least: int = 6) -> int:
    """Count the pairs of places that have at least this many lines of the same shape in a row."""
    shapes: list[str] = []
    for number, tree in enumerate(trees):
        shapes += [*shapes_of(tree), f"end of file {number}"]
    starts: dict[tuple[str, ...], list[int]] = {}
    for start in range(len(shapes) - least + 1):
        window = tuple(shapes[start : start + least])
        if len(set(window)) >= 3:
            starts.setdefault(window, []).append(start)
    pairs = {
        (first, second)
        for places in starts.values()
        for first in places
        for second in places
        if second - first >= least
    }
    # A longer run is many pairs, each one line after the other: only the first of them is counted.
    return sum((first - 1, second - 1) not in pairs for first, second in pairs)


def shapes_of(tree: ast.Module) -> list[str]:
    """Return the shape of each line of code: names become n, numbers and texts 0."""
    tree = Shapes().visit(tree)
    return [line.strip() for line in ast.unparse(tree).splitlines() if line.strip()]


class Shapes(ast.NodeTransformer):
    """Replaces names and constants, and removes docstrings and imports."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Replace a name."""
        return ast.copy_location(ast.Name("n", node.ctx), node)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """Replace a number or a text."""
        return ast.copy_location(ast.Constant(0), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        """Replace a text with values in it."""
        return ast.copy_location(ast.Constant(0), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove a docstring, and visit any other expression."""
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """Remove an import."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Remove an import."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Replace an argument of a function; its type is visited too."""
        changed = self.generic_visit(node)
        assert isinstance(changed, ast.arg)
        changed.arg = "n"
        return changed

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        """Replace a keyword of a call."""
        changed = self.generic_visit(node)
        assert isinstance(changed, ast.keyword)
        changed.arg = node.arg and "n"
        return changed

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        """Replace an attribute."""
        changed = self.generic_visit(node)
        assert isinstance(changed, ast.Attribute)
        changed.attr = "n"
        return changed

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Replace the name of a function."""
        changed = self.generic_visit(node)
        assert isinstance(changed, ast.FunctionDef)
        changed.name = "n"
        return changed


def word(key: ast.expr | None) -> str:
    """Return the text or name of a key; nothing for any other key."""
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    return key.id if isinstance(key, ast.Name) else ""


def function(value: ast.expr) -> str:
    """Return the name of the first argument of a call, without its module."""
    first = value.args[0] if isinstance(value, ast.Call) and value.args else value
    return first.attr if isinstance(first, ast.Attribute) else word(first)


if __name__ == "__main__":
    main()
