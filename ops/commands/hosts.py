"""Commands on a host that has a broker's disk: mounting it, its services, its address. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inventory.inventory import Host
from ops.mirror.files import PROGRAMS
from ops.provision.changes import COOKIE_COPY
from ops.provision.wanted import AGENT_USER, COOKIE, STATE
from ops.run.plan import Command

__all__ = [
    "AGENT_UNIT",
    "BROKER_UNIT",
    "address",
    "agent_folder",
    "as_root",
    "broker_folder",
    "check_disk",
    "close_mount_point",
    "disable",
    "erase",
    "forget_death",
    "hand_over_cookie",
    "has_file_system",
    "is_mounted",
    "make_file_system",
    "mount",
    "mount_state",
    "node_name",
    "on",
    "power",
    "same_node",
    "say_dead",
    "service",
    "settle",
    "unmount",
    "unmount_state",
    "write_out",
]

BROKER_UNIT = "rabbitmq-server"
AGENT_UNIT = "messagebus-agent"
AGENT_FOLDER = "messagebus"

Argv = tuple[str, ...]


def as_root(host: Host, argv: Argv) -> Argv:
    """The same, by who logs in there."""
    return ("sudo", "-n", "--", *argv) if host.sudo else argv


def on(where: Sequence[Host], *argvs: Argv) -> tuple[Command, ...]:
    """On each of these hosts in turn, all of these."""
    return tuple(Command(as_root(host, argv), host.ssh) for host in where for argv in argvs)


def erase(disk: Path) -> Argv:
    """Make a disk blank, as far as its signatures say; there is no way back."""
    return ("wipefs", "--all", "--quiet", str(disk))


def has_file_system(device: Path) -> Argv:
    """Ends with 0 when it has one, or anything else that blkid knows."""
    return ("blkid", "-p", str(device))


def make_file_system(device: Path) -> Argv:
    return ("mkfs.ext4", "-q", str(device))


def check_disk(device: Path) -> Argv:
    return (f"{PROGRAMS}/check-disk", str(device))


def is_mounted(folder: Path) -> Argv:
    return ("mountpoint", "-q", str(folder))


def mount(device: Path, folder: Path) -> Argv:
    return ("mount", str(device), str(folder))


def unmount(folder: Path) -> Argv:
    return ("umount", str(folder))


def close_mount_point(folder: Path) -> Argv:
    """Without its disk no broker may write there: it would start empty, and be believed."""
    return ("install", "-d", "-o", "root", "-g", "root", "-m", "555", str(folder))


def broker_folder(folder: Path) -> Argv:
    """The mounted disk is RabbitMQ's."""
    return ("install", "-d", "-o", "rabbitmq", "-g", "rabbitmq", "-m", "750", str(folder))


def agent_folder(folder: Path) -> Argv:
    """For the agent's state, on the disk that is mounted there."""
    owner = ("-o", AGENT_USER, "-g", AGENT_USER)
    return ("install", "-d", *owner, "-m", "750", str(folder / AGENT_FOLDER))


def mount_state(folder: Path) -> Argv:
    """Move what the agent knows with its broker: else it would have to ask a majority of the others."""
    return ("mount", "--bind", str(folder / AGENT_FOLDER), str(STATE))


def unmount_state() -> Argv:
    return ("umount", str(STATE))


def write_out(folder: Path) -> Argv:
    return ("sync", "-f", str(folder))


def settle(folder: Path) -> Argv:
    """Wait, write out, and see that it was all: after topology, users, cookie or a first start."""
    return (f"{PROGRAMS}/settle", str(folder))


def node_name() -> Argv:
    """Writes what RabbitMQ's settings call the node; nothing where they leave it to the host's name."""
    return ("sed", "-n", "s/^NODENAME=//p", "/etc/rabbitmq/rabbitmq-env.conf")


def same_node(folder: Path) -> Argv:
    """Fails where the broker would not be the one whose data are there."""
    return (f"{PROGRAMS}/same-node", str(folder))


def hand_over_cookie(folder: Path) -> Argv:
    """The agent's own copy of the broker's cookie, with which it asks the node; as provisioning makes it."""
    owner = ("-o", AGENT_USER, "-g", AGENT_USER)
    return ("install", "-m", "400", *owner, str(folder / COOKIE.name), str(COOKIE_COPY))


def address(word: str, address: str) -> Argv:
    """word: take or drop. address: with its prefix."""
    return (f"{PROGRAMS}/move-address", word, address)


def service(word: str, unit: str) -> Argv:
    """word: start, stop or is-active."""
    return ("systemctl", word, unit)


def disable(*units: str) -> Argv:
    """A boot starts no broker of a mirror: which host has the disk is for a playbook to decide."""
    return ("systemctl", "disable", *units)


def say_dead(proof: str) -> Argv:
    """proof: the file by which the fencing handler is told."""
    return ("install", "-D", "-m", "600", "/dev/null", proof)


def forget_death(proof: str) -> Argv:
    return ("rm", "-f", proof)


def power(program: str, word: str, host: str) -> Argv:
    """word: off or status."""
    return (program, word, host)
