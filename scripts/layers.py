"""Write the table of layers in CONTRIBUTING.md from the linter's contract and the first lines of modules.

python scripts/layers.py            # write the table
python scripts/layers.py --check    # compare
"""

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- layers: made by scripts/layers.py -->\n", "<!-- end of layers -->\n"


def main() -> None:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description="Write the table of layers in CONTRIBUTING.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is another")
    text = PAGE.read_text(encoding="utf-8")
    new = with_table(text)
    if parser.parse_args().check:
        sys.exit("CONTRIBUTING.md: run python scripts/layers.py" if text != new else 0)
    PAGE.write_text(new, encoding="utf-8")


def with_table(text: str) -> str:
    """Return the page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


def table() -> str:
    """Return the table: a row for each module, from the lowest layer up."""
    lines = ["| layer | module | what lives there |\n", "|---|---|---|\n"]
    for number, names in enumerate(layers()):
        lines += [f"| {number} | `{name}` | {meaning(name)} |\n" for name in names]
    return "".join(lines)


def layers() -> list[list[str]]:
    """Return the modules of each layer of the contract, the lowest layer first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    return [re.split(r" [|:] ", layer) for layer in reversed(contract["layers"])]


def meaning(name: str) -> str:
    """Return the first line of a module's docstring without its full stop."""
    package = ROOT / "src" / "calibrant" / name
    path = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = docstring.partition("\n")[0].rstrip(".").replace("``", "`")
    return first[0].lower() + first[1:] if first[1:2].islower() else first


if __name__ == "__main__":
    main()
