"""Parts of requirements.lock: what one use of this checkout needs, by version and hash.

``python -m ops.locked PART...`` prints the lines of parts. Needs the standard library alone: it runs before
there is a .venv.

The lock notes below each library what requires it (``# via``). A part is what it begins with, and all that is
required by that.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from messagebus.errors import MessageBusError
from ops.commands.kits import CHECKOUT

LOCK = "requirements.lock"
PARTS = ("build", "ops", "python", "spark")
"""To build the wheel; to run a local cluster and the playbooks; all but Spark; Spark."""
# Extras of pyproject.toml, each for the service of its name.
SERVICES = ("agent", "gateway", "monitor")
_ENTRY = re.compile(r"^(?=[\w.-]+(?:\[[\w,]+\])?==)", re.MULTILINE)
_VIA = re.compile(r"^ +#(?: via)? +(.+)$", re.MULTILINE)
_NAME = re.compile(r"[\w.-]+")


class NotLocked(MessageBusError):
    """Raised when requirements.lock lacks what is asked for; `make lock` writes it anew."""


class Lock:
    """The entries of requirements.lock, by the names of their libraries."""

    def __init__(self, source: Path = CHECKOUT) -> None:
        self._source = source
        blocks = filter(None, _ENTRY.split((source / LOCK).read_text()))
        self._entries: dict[str, str] = {_name(block): block for block in blocks}
        self._via = {name: set(_VIA.findall(block)) for name, block in self._entries.items()}

    def part(self, name: str) -> set[str]:
        """Return the names of the libraries of a part. Raises NotLocked for an unknown part."""
        match name:
            case "build":
                # pbr builds libraries that come as source alone: haproxyadmin, hdrhistogram.
                tools = ("build", "cyclonedx-python-lib", "pbr", "setuptools", "wheel")
                return self.required(tools)
            case "ops":
                # A file that another includes is noted with the way to it: bench/../ops/../lb/...
                kit = (each for each, via in self._via.items() if any("ops/" in by for by in via))
                return self.part("build") | self.required(kit) | self.of_services()
            case "python":
                return self._entries.keys() - self.part("spark")
            case "spark":
                return self.required(("pyspark",))
        raise NotLocked(f"no part {name!r} of {LOCK}: there are {', '.join(PARTS)}")

    def of_services(self) -> set[str]:
        """Return the names of what the wheel and its services need, and of all that these need."""
        return self.required(self.named(SERVICES))

    def named(self, extras: Iterable[str]) -> set[str]:
        """Return the names of what the wheel needs with some of its extras, without what these need."""
        return set(map(_name, requirements_of(extras, self._source)))

    def required(self, names: Iterable[str]) -> set[str]:
        """Return these libraries and all that they require. Raises NotLocked for one that the lock lacks."""
        found = new = set(names)
        if lacking := found - self._entries.keys():
            raise NotLocked(f"{LOCK} has no {', '.join(sorted(lacking))}")
        while new:
            new = {name for name, via in self._via.items() if new & via} - found
            found = found | new
        return found

    def version(self, name: str) -> str:
        """Return the version of a library."""
        return self._entries[name].split()[0].partition("==")[2]

    def required_by(self, name: str) -> set[str]:
        """Return the libraries that a library requires itself."""
        return {each for each, via in self._via.items() if name in via}

    def lines(self, names: Iterable[str]) -> str:
        """Return the entries of these libraries, as pip reads them."""
        return "".join(self._entries[name] for name in sorted(names))


def requirements_of(extras: Iterable[str], source: Path = CHECKOUT) -> list[str]:
    """Return what the wheel needs with some of its extras, as pyproject.toml has it."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(each for extra in extras for each in optional[extra])]


def _name(text: str) -> str:
    found = _NAME.match(text.strip())
    assert found, text
    return found[0].lower().replace("_", "-")


def main(parts: list[str]) -> None:
    """Print the lines of parts."""
    lock = Lock()
    try:
        sys.stdout.write(lock.lines(set[str]().union(*map(lock.part, parts))))
    except NotLocked as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main(sys.argv[1:])
