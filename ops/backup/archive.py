"""A backup as one file: a gzipped tar with a table of contents, readable by its owner alone.

It knows nothing of clusters. Names inside are paths. A listed file that is missing or changed is a fault of
the whole archive.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.errors import OpsError

__all__ = ["Archive", "read", "write"]

CONTENTS = "contents.json"
FORMAT = 1
# Definitions of a broker with 10,000 queues are 10 MB.
MEMBER_BYTES_MAX = 500_000_000


@dataclass(frozen=True, slots=True)
class Archive:
    """The contents of a backup.

    facts: values of the table of contents beside the names. secret: names of files that hold secrets.
    """

    facts: Mapping[str, Any]
    files: Mapping[str, bytes]
    secret: frozenset[str] = field(default_factory=frozenset)


def write(path: Path, archive: Archive) -> None:
    """Write an archive. Raises FileExistsError: a backup is never overwritten."""
    contents = {
        "format": FORMAT,
        **archive.facts,
        "files": {
            name: {"sha256": _digest(raw), "bytes": len(raw), "secret": name in archive.secret}
            for name, raw in archive.files.items()
        },
    }
    members = {CONTENTS: json.dumps(contents, indent=2).encode(), **archive.files}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                for name, raw in members.items():
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(raw), 0o600
                    tar.addfile(member, io.BytesIO(raw))
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read(path: Path) -> Archive:
    """Read an archive. Raises OpsError unless every file is there, unchanged; OSError."""
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            found = {member.name: _content(tar, member) for member in tar if member.isfile()}
        contents = json.loads(found.pop(CONTENTS))
        if contents.pop("format") != FORMAT:
            raise OpsError(f"{path} is of another version of this command")
        listed = contents.pop("files")
        files = {name: found[name] for name in listed}
        if damaged := [
            name for name, raw in files.items() if _digest(raw) != listed[name]["sha256"]
        ]:
            raise OpsError(f"{path} is damaged: {', '.join(damaged)}")
        secret = frozenset(name for name, known in listed.items() if known["secret"])
    except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError) as fault:
        raise OpsError(f"{path} is no backup, or damaged: {fault}") from fault
    return Archive(contents, files, secret)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > MEMBER_BYTES_MAX:
        raise OpsError(f"{member.name}: above {MEMBER_BYTES_MAX} bytes")
    file = tar.extractfile(member)
    return file.read() if file else b""


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
