"""Commands on a host that has a broker's disk: mounting it, its services, its address. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inventory.inventory import Host
from ops.mirror.files import PROGRAMS
from ops.provision.changes import COOKIE_COPY
from ops.provision.wanted import AGENT_USER, COOKIE, STATE
from ops.run.plan import Command

BROKER_UNIT = "rabbitmq-server"
AGENT_UNIT = "messagebus-agent"
AGENT_FOLDER = "messagebus"

Argv = tuple[str, ...]


def as_root(host: Host, argv: Argv) -> Argv:
    """Return the command with sudo, where the SSH user of the host is not root."""
    return ("sudo", "-n", "--", *argv) if host.sudo else argv


def on(where: Sequence[Host], *argvs: Argv) -> tuple[Command, ...]:
    """Run all of these on each of these hosts in turn."""
    return tuple(Command(as_root(host, argv), host.ssh) for host in where for argv in argvs)


def erase(disk: Path) -> Argv:
    """Erase the signatures of a disk, so that it counts as blank; there is no way back."""
    return ("wipefs", "--all", "--quiet", str(disk))


def has_file_system(device: Path) -> Argv:
    """Succeed where the device has a file system, or anything else that blkid knows."""
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
    """Make a folder that no broker can write to while its disk is not mounted there.

    Otherwise a broker would start empty, and clients would trust it.
    """
    return ("install", "-d", "-o", "root", "-g", "root", "-m", "555", str(folder))


def broker_folder(folder: Path) -> Argv:
    """Give the mounted disk to RabbitMQ's user."""
    return ("install", "-d", "-o", "rabbitmq", "-g", "rabbitmq", "-m", "750", str(folder))


def agent_folder(folder: Path) -> Argv:
    """Make the folder for the agent's state, on the disk that is mounted there."""
    owner = ("-o", AGENT_USER, "-g", AGENT_USER)
    return ("install", "-d", *owner, "-m", "750", str(folder / AGENT_FOLDER))


def mount_state(folder: Path) -> Argv:
    """Mount the agent's state from the broker's disk: else it would have to ask a majority of agents."""
    return ("mount", "--bind", str(folder / AGENT_FOLDER), str(STATE))


def unmount_state() -> Argv:
    return ("umount", str(STATE))


def settle(folder: Path) -> Argv:
    """Wait and write out, then check that nothing is left: after topology, users, cookie or a first start."""
    return (f"{PROGRAMS}/settle", str(folder))


def node_name() -> Argv:
    """Print the node name of RabbitMQ's settings; nothing where they leave it to the host's name."""
    return ("sed", "-n", "s/^NODENAME=//p", "/etc/rabbitmq/rabbitmq-env.conf")


def same_node(folder: Path) -> Argv:
    """Fail where the broker would not be the one whose data are there."""
    return (f"{PROGRAMS}/same-node", str(folder))


def hand_over_cookie(folder: Path) -> Argv:
    """Copy the broker's cookie for the agent, which asks the node with it; as provisioning does."""
    owner = ("-o", AGENT_USER, "-g", AGENT_USER)
    return ("install", "-m", "400", *owner, str(folder / COOKIE.name), str(COOKIE_COPY))


def address(word: str, address: str) -> Argv:
    """Take or drop an address. word: take or drop. address: with its prefix."""
    return (f"{PROGRAMS}/move-address", word, address)


def service(word: str, unit: str) -> Argv:
    """Control a unit. word: start, stop or is-active."""
    return ("systemctl", word, unit)


def disable(*units: str) -> Argv:
    """Disable units at boot, so that no broker of a mirror starts.

    A playbook decides which host has the disk.
    """
    return ("systemctl", "disable", *units)


def say_dead(proof: str) -> Argv:
    """Write the proof of a host's death. proof: the file that the fencing handler looks for."""
    return ("install", "-D", "-m", "600", "/dev/null", proof)


def forget_death(proof: str) -> Argv:
    return ("rm", "-f", proof)


def power(program: str, word: str, host: str) -> Argv:
    """Ask a power controller. word: off or status."""
    return (program, word, host)
