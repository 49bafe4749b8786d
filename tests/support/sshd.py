"""A real SSH server on this machine, with keys and a known-hosts file of its own, for the user of the tests.

It stands for another host: commands for it over SSH run here.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.processes import free_port
from tests.support.debian import program
from tests.support.eventually import FACTOR, eventually

HOST = "127.0.0.1"
# Root's sshd wants this user; the package would make it.
PASSWD_LINE = "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"

SERVER = """
Port {port}
ListenAddress {host}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
"""
CLIENT = """
Host *
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


@dataclass(frozen=True, slots=True)
class Sshd:
    """SSH server. address: ``user@host:port``. config: of the client, for $MESSAGEBUS_SSH_CONFIG."""

    address: str
    config: Path
    folder: Path
    process: subprocess.Popen[bytes]

    def change_key(self) -> None:
        """Have clients expect another key than the server has."""
        _keygen(self.folder / "other")
        _know(self.folder, self.folder / "other.pub", self.address.rpartition(":")[2])


@contextmanager
def ssh_server(folder: Path) -> Iterator[Sshd]:
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port(HOST)
    for name in ("host", "user"):
        _keygen(folder / name)
    (folder / "sshd_config").write_text(SERVER.format(port=port, host=HOST, folder=folder))
    (folder / "ssh_config").write_text(CLIENT.format(folder=folder))
    _know(folder, folder / "host.pub", str(port))
    log = (folder / "sshd.log").open("wb")
    process = subprocess.Popen(_command(folder), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        eventually(lambda: _answers(port) or process.poll() is not None, within_s=60)
        assert process.poll() is None, (folder / "sshd.log").read_text()
        yield Sshd(f"{getpass.getuser()}@{HOST}:{port}", folder / "ssh_config", folder, process)
    finally:
        log.close()
        process.terminate()
        process.wait(timeout=60 * FACTOR)


def _command(folder: Path) -> list[str]:
    argv = [
        program("sshd", package="openssh-server"),
        "-D",
        "-e",
        "-f",
        str(folder / "sshd_config"),
    ]
    if os.geteuid() != 0:
        return argv
    # In a view of its own on two files, so that nothing of the system is changed.
    (folder / "passwd").write_text(f"{_without_sshd()}{PASSWD_LINE}")
    folder.chmod(0o755)
    script = (
        f"mount --bind {shlex.quote(str(folder / 'passwd'))} /etc/passwd && mkdir -p /run/sshd &&"
        f" mount -t tmpfs -o mode=755 none /run/sshd && exec {shlex.join(argv)}"
    )
    return ["unshare", "--mount", "sh", "-c", script]


def _without_sshd() -> str:
    lines = Path("/etc/passwd").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("sshd:"))


def _keygen(path: Path) -> None:
    path.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(argv, check=True, timeout=60 * FACTOR)


def _know(folder: Path, key: Path, port: str) -> None:
    kind, text, *_ = key.read_text().split()
    (folder / "known_hosts").write_text(f"[{HOST}]:{port} {kind} {text}\n")


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
