"""Labelled texts on disk: JSON in the layout of CLINC150, and CSV with columns ``text`` and ``label``."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.errors import FormatError
from calibrant.training.datasets.reading import check_exists, read

_ALIASES = {"train": ("train",), "validation": ("val", "validation", "valid"), "test": ("test",)}


@dataclass(frozen=True)
class Texts:
    """Texts and the names of their classes; a foreign text has none."""

    texts: Sequence[str]
    labels: Sequence[str]


def read_texts(path: Path) -> tuple[dict[str, Texts], dict[str, Texts]]:
    """Return the parts ``train``, ``validation`` and ``test`` that are there, and the foreign sets."""
    check_exists(path)
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".json":
        return read(path, "JSON with train, val and test", _clinc)
    if path.suffix.lower() == ".csv":
        return {"train": read(path, "CSV with columns text and label", _labelled)}, {}
    raise FormatError(
        f"{path.name}: expected a .json or .csv file or a folder of .csv files, "
        f"got {path.suffix or 'no suffix'!r}"
    )


def _folder(path: Path) -> tuple[dict[str, Texts], dict[str, Texts]]:
    found = {part: _first(path, names) for part, names in _ALIASES.items()}
    if found["train"] is None:
        raise FormatError(f"{path}: expected train.csv, got none; name the file, or call it train.csv")
    what = "CSV with columns text and label"
    parts = {part: read(file, what, _labelled) for part, file in found.items() if file is not None}
    foreign = path / "oos.csv"
    if not foreign.exists():
        return parts, {}
    return parts, {"oos": read(foreign, "CSV with a column text", _unlabelled)}


def _first(path: Path, names: Sequence[str]) -> Path | None:
    return next((path / f"{name}.csv" for name in names if (path / f"{name}.csv").exists()), None)


def _labelled(path: Path) -> Texts:
    rows = _rows(path, ("text", "label"))
    return Texts([row["text"] for row in rows], [row["label"] for row in rows])


def _unlabelled(path: Path) -> Texts:
    return Texts([row["text"] for row in _rows(path, ("text",))], [])


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        names = list(reader.fieldnames or [])
        for column in columns:
            if column not in names:
                raise FormatError(f"expected a column {column}, got {', '.join(names)}; rename what holds it")
        rows = []
        for row in reader:
            if any(not row[column] for column in columns):
                raise FormatError(
                    f"expected {' and '.join(columns)} in every line, got line {reader.line_num} without; "
                    "complete it or leave it out"
                )
            rows.append(row)
    if not rows:
        raise FormatError("expected at least one line below the header, got none")
    return rows


def _clinc(path: Path) -> tuple[dict[str, Texts], dict[str, Texts]]:
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(content, Mapping):
        raise FormatError(f"expected an object with train, val and test, got a {type(content).__name__}")
    parts = {}
    for part, names in _ALIASES.items():
        for name in names:
            if content.get(name):
                parts[part] = _pairs(content[name], name)
                break
    if "train" not in parts:
        raise FormatError(
            f"expected train, got {', '.join(map(str, content)) or 'nothing'}; rename what holds it"
        )
    if not content.get("oos_test"):
        return parts, {}
    return parts, {"oos": Texts(_pairs(content["oos_test"], "oos_test").texts, [])}


def _pairs(entries: Any, name: str) -> Texts:  # noqa: ANN401  # any JSON value
    if not isinstance(entries, list):
        raise FormatError(f"{name}: expected a list of [text, label], got a {type(entries).__name__}")
    for number, entry in enumerate(entries):
        if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(item, str) for item in entry)):
            raise FormatError(
                f"{name}: expected [text, label] in every entry, got {str(entry)[:60]!r} in entry {number}"
            )
    return Texts([text for text, _ in entries], [label for _, label in entries])
