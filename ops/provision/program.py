"""The agent's program as one archive: messagebus and the libraries that it needs, as they are here.

So a host runs the code that was tested on this machine, and needs neither pip nor a package registry. All of
it is pure Python. The same files make the same archive, and its digest names its folder on the host.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ops.commands.kits import CHECKOUT
from ops.errors import OpsError
from ops.locked import requirements_of
from ops.provision.wanted import PROGRAMS

_NAME = re.compile(r"[A-Za-z0-9._-]+")
PACKAGE = "messagebus"
# Of the package, what no agent imports.
LEFT_OUT = ("integrations", "services/gateway", "services/monitor", "testing")
COMPILED = (".so", ".pyd")
DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Program:
    """The archive. text: base64 of a gzipped tar. digest: digest of its contents."""

    digest: str
    text: str


def pack() -> Program:
    """Pack the program. Raises OpsError when a library is missing here, or is compiled for this machine."""
    files = dict(sorted(_files()))
    summed = hashlib.sha256()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, path in files.items():
            data = path.read_bytes()
            summed.update(f"{name} {len(data)}\n".encode() + data)
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return Program(
        digest=summed.hexdigest()[:DIGEST_CHARS], text=base64.b64encode(packed.getvalue()).decode()
    )


def unpack_command(program: Program) -> tuple[str, ...]:
    """Return the command that reads the archive from its standard input, on the host."""
    script = Path(__file__).with_name("unpack.py").read_text()
    return ("python3", "-c", script, str(PROGRAMS), program.digest)


def _files() -> Iterator[tuple[str, Path]]:
    """Yield name in the archive and file."""
    package = CHECKOUT / PACKAGE
    for path in package.rglob("*.py"):
        if not any(path.is_relative_to(package / each) for each in LEFT_OUT):
            yield str(path.relative_to(CHECKOUT)), path
    for name in needed(requirements_of(("agent",))):
        for file in distribution(name).files or ():
            text = str(file)
            if text.endswith(COMPILED):
                raise OpsError(f"{name} is compiled for this machine: {text}")
            if not text.startswith("..") and "__pycache__" not in text:
                yield text, Path(str(file.locate()))


def needed(requirements: Iterable[str]) -> set[str]:
    """Return the names of required libraries, with all their dependencies.

    Raises OpsError when one is not installed here.
    """
    waiting = list(requirements)
    found: set[str] = set()
    while waiting:
        name = _name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            waiting += _required(distribution(name).requires or ())
        except PackageNotFoundError as fault:
            raise OpsError(f"{name} is needed, and not installed here") from fault
    return found


def _required(requirements: Iterable[str]) -> list[str]:
    """Return the requirements, without those of an extra.

    A requirement that its marker excludes here is not installed either, and left out.
    """
    found = []
    for each in requirements:
        text, _, marker = each.partition(";")
        if "extra" in marker:
            continue
        try:
            distribution(_name(text))
        except PackageNotFoundError:
            if marker:
                continue
        found.append(text)
    return found


def _name(requirement: str) -> str:
    found = _NAME.match(requirement.strip())
    assert found, requirement
    return found[0].lower().replace("_", "-")
