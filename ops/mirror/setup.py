"""Setup of both hosts of a mirror: their files, and their keys for each other.

Touches no disk of a mirror.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from inventory.inventory import Host
from ops.mirror.files import FENCE_KEY, KNOWN_PEERS, authorized_line, files
from ops.mirror.view import MirrorView
from ops.provision.hosts import Root
from ops.provision.wanted import WantedFile
from ops.run import shell

__all__ = ["set_up"]

AUTHORIZED_KEYS = Path("/root/.ssh/authorized_keys")
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"


def set_up(view: MirrorView) -> None:
    """Set up both hosts; a second call changes nothing.

    Raises CommandFailed, HostUnreachable, SudoRefused.
    """
    with ThreadPoolExecutor(2) as pool:
        home, standby = view.hosts
        of_home, of_standby = pool.map(lambda host: _furnish(view, host), view.hosts)
        list(pool.map(_acquaint, view.hosts, (standby, home), (of_standby, of_home)))


@contextmanager
def _as_root(host: Host) -> Iterator[Root]:
    with shell.remote(host.ssh) as remote:
        yield Root(remote, host=host.name, sudo=host.sudo)


def _furnish(view: MirrorView, host: Host) -> tuple[str, str]:
    """Write the host's files. Returns its host key, and the key of its fencing handler; both public."""
    with _as_root(host) as root:
        for each in files(view.inventory, view.mirror, host):
            root.write(each)
        if not root.ask(("cat", f"{FENCE_KEY}.pub")).startswith("ssh-"):
            root.run(("install", "-d", "-m", "700", str(Path(FENCE_KEY).parent)))
            root.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", FENCE_KEY))
        return root.run(("cat", HOST_KEY)), root.run(("cat", f"{FENCE_KEY}.pub"))


def _acquaint(host: Host, peer: Host, keys: tuple[str, str]) -> None:
    """Write the peer's keys on a host, and allow the peer's fencing handler to log in, for that alone."""
    with _as_root(host) as root:
        _write_keys(root, peer, *keys)


def _write_keys(root: Root, peer: Host, host_key: str, fence_key: str) -> None:
    kind, key = host_key.split()[:2]
    known = f"{peer.name} {kind} {key}\n"
    root.write(WantedFile(path=Path(KNOWN_PEERS), text=known, mode=0o600))
    line = authorized_line(peer, fence_key)
    root.run(("install", "-d", "-m", "700", str(AUTHORIZED_KEYS.parent)))
    root.run(("touch", str(AUTHORIZED_KEYS)))
    has = root.run(("cat", str(AUTHORIZED_KEYS))).splitlines()
    kept = [each for each in has if not each.endswith(f" {line.split()[-1]}")]
    if has != [*kept, line]:
        text = "\n".join([*kept, line]) + "\n"
        root.write(WantedFile(path=AUTHORIZED_KEYS, text=text, mode=0o600))
