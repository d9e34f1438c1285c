"""Print how large the source is, how deep its imports go, and how many files describe a measure.

    python scripts/structure.py                 # this checkout
    python scripts/structure.py main~20 main    # two commits side by side

- *Chain*: the longest chain of modules, each of which imports the next as soon as it is imported; imports
  inside functions and for type checking do not count.
- *Files per measure*: the file that defines it and those with a table that has an entry for it: the files to
  edit when a measure is added.
"""

import argparse
import ast
import functools
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

MEASURES = {
    "accuracy": "accuracy",
    "mean_confidence": "mean_confidence",
    "nll": "negative_log_likelihood",
    "brier": "brier_score",
    "ece": "expected_calibration_error",
    "mce": "maximum_calibration_error",
    "classwise_ece": "classwise_calibration_error",
    "smece": "smooth_ece",
    "overconfidence": "overconfidence",
    "aurc": "aurc",
    "auroc_correct": "auroc_correctness",
    "ks": "ks_error",
}


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


def describe(source: Path) -> dict[str, str]:
    """Return the facts about a source folder."""
    modules = {module_name(path, source): path for path in sorted(source.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values())
    counts = [files_of_measure(name, function, trees) for name, function in MEASURES.items()]
    return {
        "files": f"{len(modules):,}",
        "lines": f"{lines:,}",
        "longest chain of imports": str(longest_chain(trees)),
        "files per measure": f"{min(counts)} to {max(counts)}",
    }


def module_name(path: Path, source: Path) -> str:
    """Return the name by which a file is imported."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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


def files_of_measure(name: str, function: str, trees: dict[str, ast.Module]) -> int:
    """Count the file that defines a measure and those whose tables have an entry for it."""
    return 1 + sum(
        any(name in entries(statement) or function in entries(statement) for statement in tree.body)
        for tree in trees.values()
    )


def entries(statement: ast.stmt) -> set[str]:
    """Return the keys of the dictionaries that a statement of a module assigns."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return set()
    tables = [node for node in ast.walk(statement) if isinstance(node, ast.Dict)]
    keys = [key for table in tables for key in table.keys]
    words = {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return words | {key.id for key in keys if isinstance(key, ast.Name)}


if __name__ == "__main__":
    main()
