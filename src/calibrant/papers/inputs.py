"""What a job reads: a digest of its settings and of the content of its files, so that no row goes stale."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from calibrant.papers.experiment import Job

_CHUNK = 1 << 22


def inputs_digest(job: Job, data: Path | None, needs: Iterable[str] = ()) -> str:
    """Return a digest of all that decides about the numbers of a job, besides its key and its seed.

    Args:
        job: The job.
        data: Folder of the data sets that are not bundled.
        needs: Names of further data sets in that folder that the job may read.
    """
    # Of the tasks and recipes only its own: a change of others concerns other jobs.
    named = {"tasks": job.key.get("task"), "recipes": job.key.get("method")}
    settings = {name: value for name, value in job.settings.items() if name not in named}
    own = [settings, *(job.settings.get(name, {}).get(key) for name, key in named.items())]
    text = json.dumps([job.worker, own], sort_keys=True, default=str)
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, path in sorted(_files(job, own, data, needs)):
        digest.update(f"{name}\n{_content(path, path.stat().st_size, path.stat().st_mtime_ns)}\n".encode())
    return digest.hexdigest()


def _files(
    job: Job, own: Sequence[object], data: Path | None, needs: Iterable[str]
) -> Iterator[tuple[str, Path]]:
    """Yield the files that a job names or needs, each with a name that does not depend on the machine."""
    places = [place for text in _texts([dict(job.key), *own]) for place in _places(text, job.seed, data)]
    if data is not None:
        named = (*needs, str(job.key.get("file", "")), *job.settings.get("files", ()))
        places += [data / name for name in named if name]
    if job.worker == "training":
        places += [place for text in _texts([dict(job.key), *own]) for place in _sources(text)]
    for place in set(places):
        inside = sorted(each for each in place.rglob("*") if each.is_file()) if place.is_dir() else [place]
        root = data if data is not None and place.is_relative_to(data) else place.parent
        yield from ((each.relative_to(root).as_posix(), each) for each in inside if each.is_file())


def _sources(text: str) -> list[Path]:
    """Return the files of the modules that a text names as ``module:name``, code of the user's own."""
    if ":" not in text:
        return []
    from calibrant.training.own_code import source_files

    return source_files(text)


def _texts(value: object) -> Iterator[str]:
    """Yield all strings in a nested value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _places(text: str, seed: int, data: Path | None) -> Iterator[Path]:
    """Yield the existing places that a text names: ``kind:PLACE,PLACE`` with ``{data}`` and ``{seed}``."""
    if "{data}" not in text and os.sep not in text and "." not in text:
        return  # the name of a method or a data set
    named = text.replace("{data}", str(data)).replace("{seed}", str(seed))
    for part in (named, named.partition(":")[2]):
        for place in map(Path, filter(None, part.split(","))):
            try:
                if place.exists():
                    yield place
            except (OSError, ValueError):  # a text too long, or with characters that no file has
                continue


@cache
def _content(path: Path, size: int, changed: int) -> str:  # noqa: ARG001  # a changed file is read again
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
