"""Change the code in small ways and list which changes the tests notice.

``python scripts/mutations.py --count 40 --seed 0`` draws 40 changes of ``src``: another operator, comparison
or constant, a dropped ``not``, swapped arguments. Each is made in a copy of the commit, and tests run there
until one fails: those of the changed module and those that import it, those of its room, the fast ones before
the slow ones, and with ``--all`` the rest. A change that no test notices is listed as survived: it has no
consequence, or the tests have a gap.

``--also COMMIT`` draws only changes of lines that another commit has too, so that both commits can be tried
with the same changes: ``--commit A --also B`` and ``--commit B --also A`` draw the same.
"""

import argparse
import ast
import io
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/calibrant"
#: Operators, and what takes their place.
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: (r"/", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
    ast.And: (r"\band\b", "or"),
    ast.Or: (r"\bor\b", "and"),
}
#: The line of pytest's summary that names a test that failed.
FAILED = re.compile(r"^(?:SUBFAILED(?:\[.*?\])?|FAILED|ERROR) (\S*tests/.*?)(?: - .*)?$", re.MULTILINE)
#: Seconds after which tests that do not end count as failed.
LIMIT = 1200


@dataclass(frozen=True, order=True)
class Key:
    """What identifies a change in any version of the code: its function, line, place in the line and kind."""

    function: str
    line: str
    column: int
    kind: str


@dataclass(frozen=True)
class Mutation:
    """A change of one line of a file.

    Attributes:
        key: What identifies it in other versions.
        file: The file, relative to the repository.
        row: Number of the line, from 1.
        start: First column of what is replaced.
        end: Column after what is replaced.
        text: What takes its place.
    """

    key: Key
    file: str
    row: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the source with the change."""
        lines = source.splitlines(keepends=True)
        line = lines[self.row - 1].encode()
        lines[self.row - 1] = (line[: self.start] + self.text.encode() + line[self.end :]).decode()
        return "".join(lines)

    def __str__(self) -> str:
        line = self.key.line.encode()
        indent = self.key.column - self.start
        after = (line[: self.start + indent] + self.text.encode() + line[self.end + indent :]).decode()
        return f"{self.file}:{self.row}: {self.key.line}  ->  {after}"


class _Finder(ast.NodeVisitor):
    """Finds changes in executable code: not in docstrings, annotations, decorators and messages."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.lines = file, [line.encode() for line in source.splitlines()]
        self.found: list[Mutation] = []
        self._function = ""

    def add(self, kind: str, row: int, start: int, end: int, text: str) -> None:
        line = self.lines[row - 1]
        indent = len(line) - len(line.lstrip())
        key = Key(self._function, line.decode().strip(), start - indent, kind)
        self.found.append(Mutation(key, self.file, row, start, end, text))

    def between(self, kind: ast.AST, before: ast.expr, after: ast.expr) -> None:
        """Replace the operator that stands between two expressions on one line."""
        if type(kind) not in OPERATORS or before.end_lineno != after.lineno or before.end_col_offset is None:
            return
        pattern, text = OPERATORS[type(kind)]
        gap = self.lines[after.lineno - 1][before.end_col_offset : after.col_offset].decode()
        if (match := re.search(pattern, gap)) is not None:
            start = before.end_col_offset + match.start()
            self.add(type(kind).__name__, after.lineno, start, start + len(match[0]), text)

    def visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._function = self._function, f"{self._function}.{node.name}"
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._function = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_function  # noqa: N815  # names of ast

    def visit_ClassDef(self, node: ast.ClassDef) -> None:  # name of ast
        outer, self._function = self._function, f"{self._function}.{node.name}"
        for statement in node.body:
            self.visit(statement)
        self._function = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:  # name of ast
        if node.value is not None and "TypeAlias" not in ast.unparse(node.annotation):
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:  # name of ast
        """Leave messages alone."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:  # name of ast
        """Leave texts alone."""

    def visit_Assert(self, node: ast.Assert) -> None:  # name of ast
        """Leave what is always true alone."""

    def visit_BinOp(self, node: ast.BinOp) -> None:  # name of ast
        if not any(_is_text(side) for side in (node.left, node.right)):
            self.between(node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:  # name of ast
        for left, operator, right in zip(
            (node.left, *node.comparators), node.ops, node.comparators, strict=False
        ):
            self.between(operator, left, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:  # name of ast
        if len(node.values) == 2:
            self.between(node.op, *node.values)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:  # name of ast
        if isinstance(node.op, ast.Not | ast.USub) and node.lineno == node.operand.lineno:
            kind = type(node.op).__name__
            self.add(kind, node.lineno, node.col_offset, node.operand.col_offset, "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:  # name of ast
        value = node.value
        if isinstance(value, bool):
            text = str(not value)
        elif isinstance(value, int):
            text = str(value + 1)
        elif isinstance(value, float):
            text = repr(value * 2 or 1.0)
        else:
            return
        assert node.end_col_offset is not None
        self.add("constant", node.lineno, node.col_offset, node.end_col_offset, text)

    def visit_Call(self, node: ast.Call) -> None:  # name of ast
        simple = [each for each in node.args[:2] if isinstance(each, ast.Name | ast.Attribute)]
        if len(simple) == 2 and len({each.lineno for each in simple}) == 1:
            first, second = simple
            assert second.end_col_offset is not None
            if ast.unparse(first) != ast.unparse(second):
                text = f"{ast.unparse(second)}, {ast.unparse(first)}"
                self.add("swapped", first.lineno, first.col_offset, second.end_col_offset, text)
        self.generic_visit(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutations(tree: Path) -> dict[Key, Mutation]:
    """Return every change of the code below a folder that its key identifies."""
    found: list[Mutation] = []
    for path in sorted((tree / SOURCE).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        finder = _Finder(path.relative_to(tree).as_posix(), source)
        finder.visit(ast.parse(source))
        found.extend(finder.found)
    often = Counter(each.key for each in found)
    return {each.key: each for each in found if often[each.key] == 1}


def drawn(keys: Sequence[Key], count: int, seed: int) -> list[Key]:
    """Draw keys, each kind of change as often as any other."""
    generator = random.Random(seed)
    kinds: dict[str, list[Key]] = {}
    for key in sorted(keys):
        kinds.setdefault(key.kind, []).append(key)
    chosen: list[Key] = []
    while len(chosen) < count and any(kinds.values()):
        kind = generator.choice(sorted(kind for kind, left in kinds.items() if left))
        chosen.append(kinds[kind].pop(generator.randrange(len(kinds[kind]))))
    return chosen


def copy_of(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def stages(tree: Path, file: str, *, everything: bool) -> Iterator[tuple[list[str], bool]]:
    """Yield the places of the tests to run, nearest and fastest first, and whether to leave out slow ones."""
    parts = Path(file).relative_to(SOURCE).with_suffix("").parts
    own = ["/".join(("tests", *parts[:-1], f"test_{parts[-1]}.py"))]
    room = [f"tests/{parts[0]}"] if len(parts) > 1 else []
    module = ".".join(("calibrant", *parts)).removesuffix(".__init__")
    users = [
        path.relative_to(tree).as_posix()
        for path in sorted((tree / "tests").rglob("test_*.py"))
        if re.search(rf"\b{re.escape(module)}\b", path.read_text(encoding="utf-8"))
    ]
    near = list(dict.fromkeys(place for place in (*own, *users) if (tree / place).exists()))
    room = [place for place in room if (tree / place).exists()]
    yield from ((places, True) for places in (near, room) if places)
    yield from ((places, False) for places in (near, room) if places)
    if everything:
        yield ["src", "tests"], False


class Suite:
    """The tests of a copy, run until one fails."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._sound: dict[str, bool] = {}
        settings = (tree / "pyproject.toml").read_text(encoding="utf-8")
        self._fast = "not slow and not long" if '"long: ' in settings else "not slow"

    def run(self, places: Sequence[str], *, fast: bool = False) -> str | None:
        """Run tests, or the fast ones; return the first that fails, or None."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        if fast:
            command += ["-m", self._fast]
        environment = {**os.environ, "PYTHONPATH": str(self._tree / "src"), "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*command, "--no-header", "--tb=no", *places],
                cwd=self._tree,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{' '.join(places)}: not ended after {LIMIT} s"
        if done.returncode in (0, 5):
            return None
        if done.returncode not in (1, 2):
            raise RuntimeError(done.stderr or done.stdout)
        failed = FAILED.search(done.stdout)
        return failed[1] if failed else done.stdout.strip().rpartition("\n")[2]

    def passes(self, test: str) -> bool:
        """Return whether a test passes in the copy as it is now; asked once for each test."""
        if "::" not in test:
            return True
        if test not in self._sound:
            self._sound[test] = self.run([test.partition("[")[0]]) is None
        return self._sound[test]


def killer(tree: Path, suite: Suite, mutation: Mutation, *, everything: bool, stamp: int) -> str | None:
    """Make the change, run tests, undo the change; return the test that failed, or None."""
    path = tree / mutation.file
    source = path.read_text(encoding="utf-8")
    path.write_text(mutation.apply(source), encoding="utf-8")
    os.utime(path, (stamp, stamp))  # or Python would take the bytecode of the same second
    try:
        places = stages(tree, mutation.file, everything=everything)
        found = (suite.run(some, fast=fast) for some, fast in places)
        return next((test for test in found if test is not None), None)
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, (stamp + 1, stamp + 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each change with the test that notices it, and how many survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=40, help="number of changes")
    parser.add_argument("--seed", type=int, default=0, help="other seeds draw other changes")
    parser.add_argument("--commit", default="HEAD", help="the commit that is changed and tested")
    parser.add_argument("--also", help="draw changes of lines that this commit has too")
    parser.add_argument("--all", action="store_true", help="run every test before a change survives")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first of the drawn changes")
    parser.add_argument("--list", action="store_true", help="print the changes and run nothing")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of(given.commit, Path(folder) / "tree")
        found = mutations(tree)
        keys = set(found)
        if given.also:
            keys &= set(mutations(copy_of(given.also, Path(folder) / "also")))
        chosen = [found[key] for key in drawn(sorted(keys), given.count, given.seed)][given.skip :]
        suite, survived = Suite(tree), 0
        for number, mutation in enumerate(chosen):
            test = None
            if not given.list:
                stamp = 2_000_000_000 + 10 * number
                test = killer(tree, suite, mutation, everything=given.all, stamp=stamp)
            survived += test is None
            sound = test is None or suite.passes(test)
            verdict = "survived" if test is None else f"killed by {test}" + " (fails anyway)" * (not sound)
            print(f"{given.skip + number + 1}. {mutation}\n   {'' if given.list else verdict}", flush=True)
    if not given.list:
        print(f"{len(chosen) - survived} of {len(chosen)} killed, {survived} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
