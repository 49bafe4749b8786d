"""Files replaced as a whole: durably, with their folders, or without an fsync."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["owner_only", "replace_file", "sync_folder", "write_whole"]

SECRET_MODE, OPEN_MODE = 0o600, 0o644


def write_whole(path: Path, text: str, *, mode: int | None = SECRET_MODE) -> None:
    """Replace a file: a reader sees the old or the new text, and a power-off loses neither.

    The file has its mode before it has its text. mode: None for that of the old file, OPEN_MODE without one.
    Makes missing folders. A failed write leaves the old file, and nothing else.
    Raises OSError, which names the file.
    """
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else OPEN_MODE
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", newline="") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException as fault:
        Path(name).unlink(missing_ok=True)
        if isinstance(fault, OSError) and fault.errno and not fault.filename:  # a full disk
            raise OSError(fault.errno, fault.strerror, str(path)) from fault
        raise
    sync_folder(path.parent)


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file: a reader sees the old or the new content; a power-off may lose both.

    The folder must exist. The file's mode is what the umask gives, whatever the old file's mode was. A
    symbolic link at the temporary name is not followed. A failed write leaves the old file, and nothing else.
    Raises OSError.
    """
    candidate = path.with_name(f".{path.name}.{os.getpid()}")
    candidate.unlink(missing_ok=True)
    try:
        with candidate.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        candidate.replace(path)
    except BaseException:
        candidate.unlink(missing_ok=True)
        raise


def owner_only(path: str | os.PathLike[str], flags: int) -> int:
    """Return a descriptor of a file; a new file is for its owner alone, whatever the umask is.

    flags: of `os.open`. Also an ``opener`` of `open`. Raises OSError.
    """
    return os.open(path, flags | os.O_CLOEXEC, SECRET_MODE)


def sync_folder(folder: Path) -> None:
    """Write the folder's names to the disk: of files that are new, renamed or deleted. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
