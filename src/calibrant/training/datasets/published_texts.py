"""20 Newsgroups and DBpedia as they are distributed: an archive, or the folder that it unpacks to.

Archives are read in memory; nothing is unpacked to the disk.
"""

import csv
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from calibrant.errors import FormatError, InputError
from calibrant.files import reading

#: Texts and the names of their classes, by part.
Parts: TypeAlias = Mapping[str, tuple[list[str], list[str]]]

ARCHIVES: Final = (".tar.gz", ".tgz")
_NEWSGROUPS = {"train": "20news-bydate-train", "test": "20news-bydate-test"}
_DBPEDIA = {"train": "train.csv", "test": "test.csv"}
_CLASSES = "classes.txt"
_NAMES = ("20news-bydate.tar.gz", "dbpedia_csv.tar.gz")
# DBpedia has 0.2 GB of text; an archive of zeros would fill the memory.
_MOST_BYTES = 2 << 30


def published_texts(path: Path, *, headers: bool = True) -> Parts | None:
    """Return the training and test texts of a published archive or its folder; None if it is neither.

    Args:
        path: ``20news-bydate.tar.gz``, ``dbpedia_csv.tar.gz``, a folder with one of them, or what they unpack
            to.
        headers: Whether the texts of 20 Newsgroups begin with their headers, some of which name the group.
    """
    if path.is_dir():
        if (path / _NEWSGROUPS["train"]).is_dir():
            with reading(path.name, "the folder of 20 Newsgroups"):
                return _newsgroups(_files_in(path, _NEWSGROUPS.values()), headers=headers)
        for folder in (path, path / "dbpedia_csv"):
            if (folder / _CLASSES).is_file() and (folder / _DBPEDIA["train"]).is_file():
                with reading(folder.name, "the folder of DBpedia"):
                    return _dbpedia(_files_in(folder, [_CLASSES, *_DBPEDIA.values()]), headers=headers)
        archive = next((path / name for name in _NAMES if (path / name).is_file()), None)
        if archive is None:
            return None
        path = archive
    elif not path.name.lower().endswith(ARCHIVES):
        return None
    with reading(path.name, "an archive of texts"):
        return _archived(path, headers=headers)


def _archived(path: Path, *, headers: bool) -> Parts:
    with tarfile.open(path, "r:gz") as archive:
        files = dict(_files_of(archive))
    if any(name.split("/")[0] == _NEWSGROUPS["train"] for name in files):
        return _newsgroups(files, headers=headers)
    inner = {name.rsplit("/", 1)[-1]: content for name, content in files.items()}
    if _CLASSES in inner:
        return _dbpedia(inner, headers=headers)
    seen = ", ".join(sorted({name.split("/")[0] for name in files})[:5]) or "no file"
    raise FormatError(f"expected {_NEWSGROUPS['train']}/ or {_CLASSES}, got {seen}; name another archive")


def _files_of(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files of an archive, without links and hidden files."""
    left = _MOST_BYTES
    for member in archive:
        name = "/".join(part for part in PurePosixPath(member.name).parts if part not in (".", "/"))
        if not member.isfile() or name.rsplit("/", 1)[-1].startswith("."):
            continue
        left -= member.size
        if left < 0:
            raise FormatError(
                f"expected at most {_MOST_BYTES >> 30} GB of text, got more; name another archive"
            )
        content = archive.extractfile(member)
        assert content is not None
        yield name, content.read()


def _files_in(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the files with these names in a folder, and all that are in folders with these names."""
    files: dict[str, bytes] = {}
    for name in names:
        entry = folder / name
        found = [entry] if entry.is_file() else sorted(entry.rglob("*"))
        for file in found:
            if file.is_file() and not file.name.startswith("."):
                files[file.relative_to(folder).as_posix()] = file.read_bytes()
    return files


def _newsgroups(files: Mapping[str, bytes], *, headers: bool) -> Parts:
    """Return 20 Newsgroups, divided by date: a folder for each part, and in it one for each group."""
    folders = {folder: part for part, folder in _NEWSGROUPS.items()}
    parts: dict[str, tuple[list[str], list[str]]] = {part: ([], []) for part in _NEWSGROUPS}
    for name, content in sorted(files.items()):  # the same order packed and unpacked
        folder, *rest = name.split("/")
        if folder not in folders or len(rest) != 2:
            continue
        text = content.decode("latin-1")
        texts, classes = parts[folders[folder]]
        texts.append(text if headers else _without_headers(text))
        classes.append(rest[0])
    for part, (texts, _) in parts.items():
        if not texts:
            raise FormatError(f"{_NEWSGROUPS[part]}: expected a folder of texts for each group, got none")
    return parts


def _without_headers(text: str) -> str:
    """Return what follows the first empty line of a message."""
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    return body if body else head


def _dbpedia(files: Mapping[str, bytes], *, headers: bool) -> Parts:
    """Return DBpedia: lines of a class, counted from 1, a title and a text."""
    if not headers:
        raise InputError("headers: expected true for DBpedia, whose texts have none, got false; leave it out")
    names = [line.strip() for line in files[_CLASSES].decode("utf-8-sig").splitlines() if line.strip()]
    parts = {}
    for part, file in _DBPEDIA.items():
        if file not in files:
            raise FormatError(f"expected {file} beside {_CLASSES}, got none; copy all files")
        with reading(file, "CSV of classes, titles and texts"):
            parts[part] = _dbpedia_rows(files[file].decode("utf-8-sig"), names)
    return parts


def _dbpedia_rows(content: str, names: list[str]) -> tuple[list[str], list[str]]:
    texts, classes = [], []
    known = {str(number): name for number, name in enumerate(names, 1)}
    reader = csv.reader(StringIO(content, newline=""), strict=True)
    for row in reader:
        if len(row) != 3 or row[0] not in known:
            raise FormatError(
                f"expected a class from 1 to {len(names)}, a title and a text, got {str(row)[:60]} in line "
                f"{reader.line_num}; copy the file again"
            )
        classes.append(known[row[0]])
        texts.append(f"{row[1]} {row[2]}".strip())
    if not texts:
        raise FormatError("expected at least one line, got none")
    return texts, classes
