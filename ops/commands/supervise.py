"""Starts and stops of brokers and agents on their hosts. Pure.

A local node is a part of `ops local`; elsewhere a node is a host with systemd units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ops.commands import doors, hosts
from ops.commands.kits import kit
from ops.provision.changes import HOLD, INSTALL_WITHIN_S
from ops.provision.units import BALANCER_STATE_UNIT
from ops.provision.wanted import COOKIE
from ops.run.plan import COMMAND_WITHIN_S, Command
from ops.run.waiting import START_AT_MOST_S

BROKER_UNIT = "rabbitmq-server"
# systemd's words for a unit without a process.
ENDED = ("inactive", "failed")
AGENT_UNIT = "messagebus-agent"
# A file's name, size, time of its last change and inode: any start of a broker changes some of them.
LISTED = "%p %s %T@ %i\\n"
# Folders with the state of a node: useless for an empty broker.
STATES = ("/var/lib/rabbitmq/mnesia", "/var/lib/messagebus")
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes")
# `ops provision` holds RabbitMQ and Erlang, so that nothing else installs another version of a running
# broker. A newer RabbitMQ requires a newer Erlang, which apt finds only where it ignores the hold.
INSTALL = (
    *(*APT, "--allow-downgrades", "--allow-change-held-packages", "--ignore-hold"),
    *("-o", "Dpkg::Options::=--force-confold", "install"),
)
SUDO = ("sudo", "-n", "--")
# A start ends by itself when it fails: by the part's death, by its patience, by systemd's own limit.
STARTED_WITHIN_S = START_AT_MOST_S + 60.0
AGENT_USER = "messagebus"
PROGRAM = "/opt/messagebus/current"
BALANCER_UNIT = "haproxy"


class Supervisor(Protocol):
    """Commands that concern one node; none where there is nothing to do.

    start_broker: the broker runs, and its doors are open. named: fails unless the broker that runs there
    has this address for a name. shut: shuts the doors of such a broker, which must be empty; see
    `ops.commands.doors`.
    installable: fails unless `reinstall` can install this version on every host of the broker.
    data: prints the files of its broker, one a line, none where there are none.
    broker_state, agent_state: print one of systemd's words for the state of its process.
    """

    def provision(self, name: str) -> tuple[Command, ...]: ...
    def start_broker(self, name: str) -> tuple[Command, ...]: ...
    def named(self, name: str, address: str) -> tuple[Command, ...]: ...
    def shut(self, name: str, address: str) -> tuple[Command, ...]: ...
    def stop_broker(self, name: str) -> tuple[Command, ...]: ...
    def start_agent(self, name: str) -> tuple[Command, ...]: ...
    def stop_agent(self, name: str) -> tuple[Command, ...]: ...
    def forget(self, name: str) -> tuple[Command, ...]: ...
    def installable(self, name: str, version: str) -> tuple[Command, ...]: ...
    def reinstall(self, name: str, version: str) -> tuple[Command, ...]: ...
    def data(self, name: str) -> Command: ...
    def broker_state(self, name: str) -> Command: ...
    def agent_state(self, name: str) -> Command: ...


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """The nodes of a local cluster. dir: folder of the cluster."""

    dir: Path

    def provision(self, name: str) -> tuple[Command, ...]:
        return self._local("provision", name)

    def start_broker(self, name: str) -> tuple[Command, ...]:
        return self._start(name)

    def named(self, name: str, address: str) -> tuple[Command, ...]:
        return self._local("named", name, address)

    def shut(self, name: str, address: str) -> tuple[Command, ...]:
        return self._local("shut", name, address)

    def stop_broker(self, name: str) -> tuple[Command, ...]:
        return self._local("stop", name)

    def start_agent(self, name: str) -> tuple[Command, ...]:
        return self._start(f"{name}-agent")

    def stop_agent(self, name: str) -> tuple[Command, ...]:
        return self._local("stop", f"{name}-agent")

    def forget(self, name: str) -> tuple[Command, ...]:
        return self._local("forget", name)

    def installable(self, name: str, version: str) -> tuple[Command, ...]:
        if not version:
            return ()
        return (replace(kit("ops", "local", "fetch", version), within_s=INSTALL_WITHIN_S),)

    def reinstall(self, name: str, version: str) -> tuple[Command, ...]:
        """Install the broker anew; without a version in that of the cluster."""
        of = ("--rabbitmq", version) if version else ()
        return (*self._local("forget", name), *self._local("provision", name, *of))

    def data(self, name: str) -> Command:
        nodes = self.dir / "nodes"
        return Command(_find(nodes, nodes / name / "data"))

    def broker_state(self, name: str) -> Command:
        return self._local("state", name)[0]

    def agent_state(self, name: str) -> Command:
        return self._local("state", f"{name}-agent")[0]

    def _start(self, name: str) -> tuple[Command, ...]:
        """Start a part; the command itself gives up where nothing moves."""
        (start,) = self._local("start", name)
        return (replace(start, within_s=STARTED_WITHIN_S),)

    def _local(self, word: str, *words: str) -> tuple[Command, ...]:
        return (kit("ops", "local", word, *words, "--dir", str(self.dir)),)


@dataclass(frozen=True, slots=True)
class SystemdNodes:
    """Nodes on hosts with systemd. hosts: name of the node -> its host.

    Hosts are installed before, and wiped after, by hand.
    sudo: nodes whose SSH user is not root. standbys: name of a mirrored node -> its other host, and whether
    its SSH user is not root; the same version is installed there, since it is the next to run the broker.
    """

    hosts: dict[str, str]
    sudo: frozenset[str] = frozenset()
    standbys: Mapping[str, tuple[str, bool]] = field(default_factory=dict)

    def provision(self, name: str) -> tuple[Command, ...]:
        return ()

    def start_broker(self, name: str) -> tuple[Command, ...]:
        return (
            *self._systemctl("start", BROKER_UNIT, name),
            *self._evaluated(name, doors.opened()),
        )

    def named(self, name: str, address: str) -> tuple[Command, ...]:
        return self._evaluated(name, doors.named(address))

    def shut(self, name: str, address: str) -> tuple[Command, ...]:
        return self._evaluated(name, doors.shut(address))

    def stop_broker(self, name: str) -> tuple[Command, ...]:
        return self._systemctl("stop", BROKER_UNIT, name)

    def start_agent(self, name: str) -> tuple[Command, ...]:
        """Start the agent with the broker's present cookie: a mirrored disk may bring another one."""
        cookie = Command(
            (*self._root(name), *hosts.hand_over_cookie(COOKIE.parent)), self.hosts[name]
        )
        return (cookie, *self._systemctl("start", AGENT_UNIT, name))

    def stop_agent(self, name: str) -> tuple[Command, ...]:
        return self._systemctl("stop", AGENT_UNIT, name)

    def forget(self, name: str) -> tuple[Command, ...]:
        return ()

    def reinstall(self, name: str, version: str) -> tuple[Command, ...]:
        """Install the broker anew.

        The package's user and folders stay; the contents of the folders are deleted. The other host of a
        mirror has no disk of the broker then, and gets the package alone.
        """
        host, root = self.hosts[name], self._root(name)
        return (
            *self.stop_broker(name),
            *self.stop_agent(name),
            *(Command((*root, "find", each, "-mindepth", "1", "-delete"), host) for each in STATES),
            *self._on_hosts(name, *INSTALL, _package(version)),
            *self._on_hosts(name, *HOLD),
        )

    def installable(self, name: str, version: str) -> tuple[Command, ...]:
        return (
            *self._on_hosts(name, *APT, "update"),
            *self._on_hosts(name, *INSTALL, "--simulate", _package(version)),
        )

    def _on_hosts(self, name: str, *argv: str) -> tuple[Command, ...]:
        where = [(self.hosts[name], name in self.sudo)]
        where += [self.standbys[name]] if name in self.standbys else []
        return tuple(
            Command((*(SUDO if sudo else ()), *argv), host, within_s=INSTALL_WITHIN_S)
            for host, sudo in where
        )

    def data(self, name: str) -> Command:
        folder = Path(STATES[0])
        return Command((*self._root(name), *_find(folder.parent, folder)), self.hosts[name])

    def broker_state(self, name: str) -> Command:
        return self._state(name, BROKER_UNIT)

    def agent_state(self, name: str) -> Command:
        return self._state(name, AGENT_UNIT)

    def _state(self, name: str, unit: str) -> Command:
        argv = ("systemctl", "show", "--property=ActiveState", "--value", unit)
        return Command(argv, self.hosts[name])

    def genesis(self, name: str) -> tuple[Command, ...]:
        """Prepare the agent's first start in a new cluster."""
        script = f"from messagebus.services.agent import genesis; genesis({STATES[1]!r})"
        program = ("env", f"PYTHONPATH={PROGRAM}", "python3", "-P", "-c", script)
        argv = ("runuser", "-u", AGENT_USER, "--", *program)
        return (Command((*self._root(name), *argv), self.hosts[name]),)

    def start_balancer(self, host: str) -> Command:
        """Start HAProxy, or restart it so that it reads its files. host: SSH address."""
        return Command(("systemctl", "restart", BALANCER_UNIT, BALANCER_STATE_UNIT), host)

    def _evaluated(self, name: str, expression: str) -> tuple[Command, ...]:
        argv = (*self._root(name), "rabbitmqctl", "--quiet", "eval", expression)
        return (Command(argv, self.hosts[name]),)

    def _systemctl(self, word: str, unit: str, name: str) -> tuple[Command, ...]:
        within_s = STARTED_WITHIN_S if word == "start" else COMMAND_WITHIN_S
        argv = (*self._root(name), "systemctl", word, unit)
        return (Command(argv, self.hosts[name], within_s=within_s),)

    def _root(self, name: str) -> tuple[str, ...]:
        return SUDO if name in self.sudo else ()


def _package(version: str) -> str:
    return f"{BROKER_UNIT}={version}" if version else BROKER_UNIT


def _find(above: Path, folder: Path) -> tuple[str, ...]:
    """Print the files of a folder.

    above: a folder that always exists, so that a missing one prints nothing.
    """
    return ("find", str(above), "-path", f"{folder}/*", "-type", "f", "-printf", LISTED)
