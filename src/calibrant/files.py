"""Files that are either the old ones or the new ones, never half written."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.errors import InputError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name next to the target, and move what was written there into place at the end.

    If the block fails, the temporary file is removed and an existing target is untouched. The temporary
    name has the target's suffix, and the result has the permissions of any other new file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder, "notes.txt")) as temporary:
        ...         _ = temporary.write_text("all of it")
        ...     Path(folder, "notes.txt").read_text()
        'all of it'
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(
            f"{target.name}: expected an existing directory, got {target.parent}; create it first"
        )
    if target.is_dir():
        raise InputError(
            f"{target.name}: expected the name of a file, got a directory; name a file inside it"
        )
    temporary = target.with_name(f".calibrant-{secrets.token_hex(8)}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
        permissions = temporary.stat().st_mode
        yield temporary
        temporary.chmod(permissions)  # safetensors puts a private file in its place
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
