"""The state of a host: the questions, as commands, and the parsers of their answers. Pure.

Every command succeeds whatever the host has, so that its answer counts and not its exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ops.provision.wanted import COOKIE, PROGRAMS, WantedHost

__all__ = ["Observed", "observe"]

Argv = Sequence[str]
Ask = Callable[[Argv], str]
"""Runs a command on the host, and returns its output, whatever its exit code. Raises CommandFailed."""
INSTALLED = "install ok installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observed state of a host.

    packages: installed, name -> version. files: path -> (digest, mode, owner), folders with digest "".
    users: the wanted users that exist -> their groups. enabled, active: units. program: digest
    of the agent's program in use. has_cookie: the agent has the broker's.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, tuple[str, int, str]] = field(default_factory=dict)
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    enabled: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    program: str = ""
    has_cookie: bool = False


def observe(wanted: WantedHost, ask: Ask, *, cookie_copy: Path) -> Observed:
    """Ask a host for all parts of its state that the wanted state names."""
    paths = [*wanted.folders, *(file.path for file in wanted.files)]
    words = [str(path) for path in paths]
    stats = _stats(ask(["stat", "-c", "%a %U:%G %n", *words])) if words else {}
    sums = _sums(ask(["sha256sum", *(str(file.path) for file in wanted.files)])) if words else {}
    return Observed(
        packages=_packages(
            ask(["dpkg-query", "-W", "-f", "${Package} ${Version} ${Status}\\n", *wanted.packages])
        ),
        files={path: (sums.get(path, ""), *stats[path]) for path in stats},
        users=_users(wanted.users, ask),
        enabled=_units(wanted.units, "enabled", ask),
        active=_units(wanted.units, "active", ask),
        program=Path(ask(["readlink", str(PROGRAMS / "current")]).strip()).name,
        has_cookie=bool(wanted.users) and not ask(["cmp", str(COOKIE), str(cookie_copy)]).strip(),
    )


def _packages(said: str) -> dict[str, str]:
    found = {}
    for line in said.splitlines():
        name, _, rest = line.partition(" ")
        version, _, status = rest.partition(" ")
        if status.strip() == INSTALLED:
            found[name] = version
    return found


def _stats(said: str) -> dict[Path, tuple[int, str]]:
    found = {}
    for line in said.splitlines():
        words = line.split(" ", 2)
        if len(words) == 3 and words[0].isdigit():
            found[Path(words[2])] = (int(words[0], 8), words[1])
    return found


def _sums(said: str) -> dict[Path, str]:
    found = {}
    for line in said.splitlines():
        digest, _, path = line.partition("  ")
        if len(digest) == 64 and path:
            found[Path(path)] = digest
    return found


def _users(wanted: Mapping[str, str], ask: Ask) -> dict[str, frozenset[str]]:
    said = {name: ask(["id", "-nG", name]) for name in wanted}
    return {
        name: frozenset(groups.split()) for name, groups in said.items() if name in groups.split()
    }


def _units(units: Sequence[str], state: str, ask: Ask) -> frozenset[str]:
    return frozenset(
        unit for unit in units if ask(["systemctl", f"is-{state}", unit]).strip() == state
    )
