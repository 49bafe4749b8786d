"""The observed state of a host, and the changes, in their order, from it to the wanted one. Pure.

Questions are commands, and their answers are parsed here. Every question succeeds whatever the host has, so
that its answer counts and not its exit code.

A running broker is never restarted by a change: one that it reads at its start is reported, and `ops restart`
applies it without losing anything. So its package is installed once and held: another version restarts it, on
its old data, and is installed by `ops upgrade` alone, broker by broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ops.provision.units import KEEPALIVED
from ops.provision.wanted import (
    AGENT_UNIT,
    BALANCER_UNIT,
    BROKER_UNIT,
    COOKIE,
    ETC,
    GATEWAY_UNIT,
    PROGRAMS,
    RABBIT_ETC,
    VRRP_UNIT,
    WantedFile,
    WantedHost,
)

Argv = Sequence[str]
Ask = Callable[[Argv], str]
"""Runs a command on the host, and returns its output, whatever its exit code. Raises CommandFailed."""
# dpkg's status of a package that is there; "hold" before it for one that apt leaves alone.
INSTALLED = " ok installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observed state of a host.

    packages: installed, name -> version. files: path -> (digest, mode, owner), folders with digest "".
    users: the wanted users that exist -> their groups. enabled, active: units. program: digest
    of the agent's program in use. has_cookie: the agent has the broker's. held: packages that apt leaves
    alone. node_name: the Erlang node of its broker's settings, "" where they name none.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, tuple[str, int, str]] = field(default_factory=dict)
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    enabled: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    program: str = ""
    has_cookie: bool = False
    held: frozenset[str] = frozenset()
    node_name: str = ""


def observe(wanted: WantedHost, ask: Ask, *, cookie_copy: Path) -> Observed:
    """Ask a host for all parts of its state that the wanted state names."""
    paths = [*wanted.folders, *(file.path for file in wanted.files)]
    words = [str(path) for path in paths]
    stats = _parse_stats(ask(["stat", "-c", "%a %U:%G %n", *words])) if words else {}
    sums = (
        _parse_sums(ask(["sha256sum", *(str(file.path) for file in wanted.files)])) if words else {}
    )
    return Observed(
        packages=_parse_packages(
            ask(["dpkg-query", "-W", "-f", "${Package} ${Version} ${Status}\\n", *wanted.packages])
        ),
        files={path: (sums.get(path, ""), *stats[path]) for path in stats},
        users=_ask_users(wanted.users, ask),
        enabled=_ask_units(wanted.units, "enabled", ask),
        active=_ask_units(wanted.units, "active", ask),
        program=Path(ask(["readlink", str(PROGRAMS / "current")]).strip()).name,
        held=frozenset(ask(["apt-mark", "showhold"]).split()),
        node_name=ask_node_name(ask),
        has_cookie=bool(wanted.users) and not ask(["cmp", str(COOKIE), str(cookie_copy)]).strip(),
    )


def ask_node_name(ask: Ask) -> str:
    """Return the Erlang node that a host's settings name; "" where they name none, or are not there."""
    output = ask(["grep", "-h", "^NODENAME=", str(SETTINGS)]).strip()
    return output.removeprefix("NODENAME=") if output.startswith("NODENAME=") else ""


def _parse_packages(output: str) -> dict[str, str]:
    found = {}
    for line in output.splitlines():
        name, _, rest = line.partition(" ")
        version, _, status = rest.partition(" ")
        if status.strip().endswith(INSTALLED):
            found[name] = version
    return found


def _parse_stats(output: str) -> dict[Path, tuple[int, str]]:
    found = {}
    for line in output.splitlines():
        words = line.split(" ", 2)
        if len(words) == 3 and words[0].isdigit():
            found[Path(words[2])] = (int(words[0], 8), words[1])
    return found


def _parse_sums(output: str) -> dict[Path, str]:
    found = {}
    for line in output.splitlines():
        digest, _, path = line.partition("  ")
        if len(digest) == 64 and path:
            found[Path(path)] = digest
    return found


def _ask_users(wanted: Mapping[str, str], ask: Ask) -> dict[str, frozenset[str]]:
    output = {name: ask(["id", "-nG", name]) for name in wanted}
    return {
        name: frozenset(groups.split()) for name, groups in output.items() if name in groups.split()
    }


def _ask_units(units: Sequence[str], state: str, ask: Ask) -> frozenset[str]:
    return frozenset(
        unit for unit in units if ask(["systemctl", f"is-{state}", unit]).strip() == state
    )


COOKIE_COPY = ETC / "cookie"
SETTINGS = RABBIT_ETC / "rabbitmq-env.conf"
# Erlang's other packages want the same version as this one, so that it holds them too.
HELD = (BROKER_UNIT, "erlang-base")
HOLD = ("apt-mark", "hold", *HELD)
APT = (
    *("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "--no-install-recommends"),
    *("-o", "Dpkg::Options::=--force-confold", "install"),
)
# Debian's packages start them at once, with settings of the packages. Playbooks start them with ours, which
# name another node and another admin socket: a service that runs already would keep the playbook waiting.
STARTED_BY_PLAYBOOKS = (BROKER_UNIT, BALANCER_UNIT)
INSTALL_WITHIN_S = 900.0
COMMAND_WITHIN_S = 180.0
# Files that a broker reads only when it starts.
READ_AT_START = ("rabbitmq-env.conf", "advanced.config", "enabled_plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change. what: in words. argv: a command; None where a file or the program is written.

    file: to be written. program: digest of the agent's program to be installed.
    """

    what: str
    argv: tuple[str, ...] | None = None
    file: WantedFile | None = None
    program: str = ""
    within_s: float = COMMAND_WITHIN_S


def changes(wanted: WantedHost, observed: Observed) -> list[Change]:
    """Return the changes that are needed; none when the host is as it should be."""
    return [
        *_packages(wanted, observed),
        *_users(wanted, observed),
        *_folders(wanted, observed),
        *(written := [*_files(wanted, observed)]),
        *_program(wanted, observed),
        *_cookie(wanted, observed),
        *_units(wanted, observed, written),
    ]


def _is_ours(unit: str, wanted: WantedHost, observed: Observed) -> bool:
    """Return whether a unit, where it runs, runs with our settings: its drop-in is written after the stop."""
    own = f"{unit}.service.d"
    lacking = (each.path for each in wanted.files if each.path not in observed.files)
    return unit in observed.packages and all(path.parent.name != own for path in lacking)


def _packages(wanted: WantedHost, observed: Observed) -> Iterator[Change]:
    lacking = [
        f"{name}={version}" if version else name
        for name, version in wanted.packages.items()
        if name not in observed.packages
        or (version not in ("", observed.packages[name]) and name != BROKER_UNIT)
    ]
    if lacking:
        yield Change(
            what=f"install {', '.join(lacking)}", argv=(*APT, *lacking), within_s=INSTALL_WITHIN_S
        )
    for unit in STARTED_BY_PLAYBOOKS:
        if unit in wanted.packages and not _is_ours(unit, wanted, observed):
            yield Change(
                what=f"stop {unit}, which its package starts", argv=("systemctl", "stop", unit)
            )
    if BROKER_UNIT in wanted.packages and not observed.held.issuperset(HELD):
        yield Change(what=f"hold {', '.join(HELD)}: `ops upgrade` alone changes them", argv=HOLD)


def obstacles(wanted: WantedHost, observed: Observed) -> list[str]:
    """Return why a host must not be set up so, in words: its broker is another one, or of another version."""
    has, version = observed.packages.get(BROKER_UNIT), wanted.packages.get(BROKER_UNIT)
    found = []
    if has and version and has != version:
        found.append(
            f"{BROKER_UNIT} {has} is installed, not {version}: `ops upgrade {wanted.broker} --to {version}`"
            " installs that, drained and empty; or correct the version in the inventory"
        )
    if another := of_another(wanted, observed.node_name):
        found.append(another)
    return found


def of_another(wanted: WantedHost, node_name: str) -> str:
    """Return that a host's broker is another one than the wanted, in words; "" where it is not."""
    own = f"{wanted.broker}@localhost"
    if not wanted.broker or node_name in ("", own):
        return ""
    return (
        f"its broker is node {node_name}, not {own}: is its SSH address that of another host? If not,"
        f" remove {SETTINGS}"
    )


def _users(wanted: WantedHost, observed: Observed) -> Iterator[Change]:
    for name, group in wanted.users.items():
        if name not in observed.users:
            argv = ("useradd", "--system", "--user-group", "--no-create-home", "--shell")
            yield Change(what=f"make user {name}", argv=(*argv, "/usr/sbin/nologin", name))
        if group not in observed.users.get(name, ()):
            yield Change(
                what=f"put {name} into group {group}",
                argv=("usermod", "--append", "--groups", group, name),
            )


def _folders(wanted: WantedHost, observed: Observed) -> Iterator[Change]:
    for path, owner in wanted.folders.items():
        if observed.files.get(path, ("", 0, ""))[1:] != (0o750, owner):
            user, _, group = owner.partition(":")
            argv = ("install", "-d", "-m", "750", "-o", user, "-g", group, str(path))
            yield Change(what=f"make folder {path}", argv=argv)


def _files(wanted: WantedHost, observed: Observed) -> Iterator[Change]:
    for file in wanted.files:
        has = observed.files.get(file.path)
        if has == (file.digest, file.mode, file.owner):
            continue
        how = "new" if has is None else "differs" if has[0] != file.digest else "mode or owner"
        yield Change(what=f"write {file.path} ({how})", file=file)


def _program(wanted: WantedHost, observed: Observed) -> Iterator[Change]:
    if wanted.program and wanted.program != observed.program:
        yield Change(
            what=f"put the agent's program into {PROGRAMS / wanted.program}", program=wanted.program
        )


def _cookie(wanted: WantedHost, observed: Observed) -> Iterator[Change]:
    if wanted.program and not observed.has_cookie:
        owner = next(iter(wanted.users))
        argv = ("install", "-m", "400", "-o", owner, "-g", owner, str(COOKIE), str(COOKIE_COPY))
        yield Change(what="let the agent have the broker's cookie", argv=argv)


def _units(wanted: WantedHost, observed: Observed, written: list[Change]) -> Iterator[Change]:
    paths = {change.file.path for change in written if change.file}
    if any(path.is_relative_to("/etc/systemd") for path in paths):
        yield Change(what="have systemd read its units", argv=("systemctl", "daemon-reload"))
    for unit in wanted.units:
        if unit not in observed.enabled:
            yield Change(what=f"start {unit} at boot", argv=("systemctl", "enable", unit))
    if Path("/etc/rabbitmq/definitions.json") in paths and BROKER_UNIT in observed.active:
        argv = ("rabbitmqctl", "import_definitions", "/etc/rabbitmq/definitions.json")
        yield Change(what="set the users, rights and policies of the broker", argv=argv)
    agents = wanted.program and wanted.program != observed.program
    if AGENT_UNIT in observed.active and (agents or any(_is_agents(path) for path in paths)):
        yield Change(what="restart the agent", argv=("systemctl", "restart", AGENT_UNIT))
    if VRRP_UNIT in wanted.units and (KEEPALIVED in paths or VRRP_UNIT not in observed.active):
        # A reload keeps the address where it is.
        what = f"have {VRRP_UNIT} keep the balancers' address at one of them"
        yield Change(what=what, argv=("systemctl", "reload-or-restart", VRRP_UNIT))
    if GATEWAY_UNIT in wanted.units:
        yield from _gateway(paths, runs=GATEWAY_UNIT in observed.active)


def _gateway(paths: Iterable[Path], *, runs: bool) -> Iterator[Change]:
    """Restart or start the gateway where it does not run, or has not read its settings. paths: written."""
    read_once = {path for path in paths if _is_gateways(path)} - {ETC / "gateway.tokens.toml"}
    if read_once or not runs:
        # HAProxy sees its end coming, and leases go back to their brokers.
        what = "restart the gateway" if runs else "start the gateway"
        yield Change(what=what, argv=("systemctl", "restart", GATEWAY_UNIT))


def _is_agents(path: Path) -> bool:
    ours = path.is_relative_to(ETC) and not _is_gateways(path)
    return ours or path.name.startswith(AGENT_UNIT)


def _is_gateways(path: Path) -> bool:
    return path.parent == ETC and path.name.startswith("gateway.")


def restart_wanted(changes: list[Change], observed: Observed) -> bool:
    """Return whether the broker runs, and reads some of these files only when it starts."""
    paths = [change.file.path for change in changes if change.file]
    return BROKER_UNIT in observed.active and any(path.name in READ_AT_START for path in paths)
