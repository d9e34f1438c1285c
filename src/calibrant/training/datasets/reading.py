"""What every reader of data does: find the file, name it in refusals, put failures into one sentence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from calibrant.errors import FormatError, InputError

T = TypeVar("T")


def check_exists(path: Path) -> Path:
    """Return the path if there is something at it."""
    if not path.exists():
        raise FormatError(f"{path}: expected a file or a folder, got nothing by that name; check the path")
    return path


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Start every refusal with the name of the file, and turn a parser's failure into one sentence."""
    try:
        yield
    except (InputError, FormatError) as error:
        raise type(error)(f"{path.name}: {error}") from None
    except Exception as error:
        # Parsers of damaged files raise nearly anything; the cause stays attached for those who look.
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise FormatError(
            f"{path.name}: expected {what}, got a file that cannot be read as such ({detail}); "
            "it may be truncated or something else by that name"
        ) from error


def read(path: Path, what: str, parse: Callable[[Path], T]) -> T:
    """Return what ``parse`` makes of a file that is there and not empty."""
    check_exists(path)
    with naming(path, what):
        if path.is_dir():
            raise FormatError(f"expected {what}, got a folder; name a file inside it")
        if path.stat().st_size == 0:
            raise FormatError(f"expected {what}, got an empty file; copy it again")
        return parse(path)
