"""Programs of a local cluster: this system's, or those in a root folder of another Debian release.

A root folder is a whole small system that is entered by chroot. So brokers and balancers of other versions
run beside the installed ones, and this system is not changed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from inventory import shell
from inventory.tables import HAPROXY
from ops.commands.kits import CHECKOUT
from ops.errors import LocalFault
from ops.local.layout import HERE, Layout, NodeLayout

ENV_ROOT = "MESSAGEBUS_LOCAL_ROOT"
"""Variable with the default root folder of new local clusters."""
# RabbitMQ's version to the Debian release that has it.
RELEASES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "sid"}
# The package's wrapper in /usr/sbin wants root and changes to the user rabbitmq; this one does not.
RABBITMQ_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
RABBITMQCTL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
EPMD_PROGRAM = "/usr/bin/epmd"
# Program to the Debian package that holds it.
PROGRAMS = {
    RABBITMQ_SERVER: "rabbitmq-server",
    EPMD_PROGRAM: "erlang-base",
    str(HAPROXY): "haproxy",
}
# A root folder's Python is one more version to run tests on.
PYTHON = ("python3", "python3-venv")

ROOTS = CHECKOUT / ".cache" / "roots"
ENTER = CHECKOUT / "ops" / "local" / "enter.sh"
# RabbitMQ's own version, in the name of a folder.
SERVERS = "usr/lib/rabbitmq/lib"
# 20 s, and 120 MB to fetch, on two idle cores.
MAKE_WITHIN_S = 540.0
INSTALL_WITHIN_S = 240.0


def default_root() -> Path:
    """Return $MESSAGEBUS_LOCAL_ROOT, else this system's root."""
    return Path(os.environ.get(ENV_ROOT) or HERE).resolve()


def root_of(layout: Layout, node: NodeLayout) -> Path:
    """Return the root folder of a node's broker; `of_version` makes it."""
    return _place(node.version) if node.version else layout.root


def _place(wanted: str) -> Path:
    return HERE if _is(version(HERE), wanted) else ROOTS / RELEASES[wanted]


def chrooted(root: Path, folder: Path, argv: Sequence[str]) -> list[str]:
    """Return the command that starts a program of a root folder; it works in a folder of this system."""
    if root == HERE:
        return list(argv)
    # A user other than root may do this in a user namespace, where the system allows it.
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["/usr/bin/unshare", *as_root, "--mount", "--propagation", "private", "--"]
    return [*unshare, "/bin/sh", str(ENTER), str(root), str(folder), *argv]


def missing(root: Path) -> list[str]:
    """Return the programs that are not there, each with its package."""
    return [
        f"{program} (package {package})"
        for program, package in PROGRAMS.items()
        if not (root / program.lstrip("/")).exists()
    ]


def version(root: Path) -> str:
    """Return RabbitMQ's version in a root folder, "" where there is none."""
    found = sorted((root / SERVERS).glob("rabbitmq_server-*"))
    return found[-1].name.partition("-")[2] if found else ""


def of_version(wanted: str, *, say: Callable[[str], None]) -> Path:
    """Return the root folder with this version of RabbitMQ, a key of RELEASES: this system's where it has it.

    Raises LocalFault when Debian's release has another version by now.
    """
    if _place(wanted) == HERE:
        return HERE
    root = make(RELEASES[wanted], say=say)
    if not _is(version(root), wanted):
        raise LocalFault(
            f"RabbitMQ is {version(root)} in Debian's {RELEASES[wanted]}, not {wanted}; "
            f"to take that one: --root {root}"
        )
    return root


def make(release: str, *, say: Callable[[str], None]) -> Path:
    """Return the root folder of a Debian release; make it when it is missing.

    Raises LocalFault or CommandFailed.
    """
    ROOTS.mkdir(parents=True, exist_ok=True)
    root, unfinished = ROOTS / release, ROOTS / f"{release}.unfinished"
    with (ROOTS / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            say(f"making a root folder of Debian's {release}: half a minute")
            shutil.rmtree(unfinished, ignore_errors=True)
            install = [str(CHECKOUT / "ops/local/install.sh"), "mmdebstrap"]
            shell.run(install, timeout_s=INSTALL_WITHIN_S)
            shell.run(_mmdebstrap(release, unfinished), timeout_s=MAKE_WITHIN_S)
            unfinished.rename(root)
    if lacking := missing(root):
        raise LocalFault(f"{root}: missing: {', '.join(lacking)}")
    return root


def _mmdebstrap(release: str, folder: Path) -> list[str]:
    return [
        "mmdebstrap",
        "--variant=minbase",
        # An unstable release's index is valid for a week; a clock that is ahead must not matter.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        f"--include={','.join([*PROGRAMS.values(), *PYTHON])}",
        release,
        str(folder),
    ]


def _is(version: str, wanted: str) -> bool:
    return version == wanted or version.startswith(f"{wanted}.")
