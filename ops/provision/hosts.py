"""Observation and changes of hosts, over SSH."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ops.errors import CommandFailed, HostKeyWrong, HostUnreachable, NoRoom, SudoRefused
from ops.provision.changes import COOKIE_COPY, Change, Observed, observe
from ops.provision.program import Program, unpack_command
from ops.provision.wanted import WantedFile, WantedHost
from ops.run import shell
from ops.run.shell import Remote

__all__ = ["ASK_WITHIN_S", "Root", "look", "make", "check_room"]

ASK_WITHIN_S = 60.0
UNPACK_WITHIN_S = 300.0
# For unpacked packages, files twice while they are replaced, and files that a package's script writes.
FREE_MB_MIN = 100
NEW_SUFFIX = ".messagebus-new"


class Root:
    """Commands as root on one host."""

    def __init__(self, remote: Remote, *, host: str, sudo: bool) -> None:
        """sudo: the SSH user is not root, and may become root without a password."""
        self._remote, self._host = remote, host
        self._prefix = ("sudo", "-n", "--") if sudo else ()

    def run(self, argv: Sequence[str], *, within_s: float = ASK_WITHIN_S, stdin: str = "") -> str:
        """Run a command.

        Raises CommandFailed; HostUnreachable and SudoRefused, which are CommandFailed too.
        """
        try:
            return self._remote.run([*self._prefix, *argv], timeout_s=within_s, stdin=stdin)
        except CommandFailed as fault:
            if fault.exit_code == shell.NOT_FOUND and fault.output.startswith("SSH: "):
                raise _no_ssh(self._host, fault.output.removeprefix("SSH: ")) from fault
            if self._prefix and fault.output.lstrip().startswith("sudo: "):
                raise SudoRefused(self._host, fault.output.strip()) from fault
            raise

    def ask(self, argv: Sequence[str]) -> str:
        """Return a command's output, whatever its exit code."""
        try:
            return self.run(argv)
        except (HostUnreachable, SudoRefused):
            raise
        except CommandFailed as fault:
            return fault.output

    def write(self, file: WantedFile) -> None:
        """Replace a file. A reader sees the old or the new one; a full disk leaves the old one."""
        user, _, group = file.owner.partition(":")
        new = f"{file.path}{NEW_SUFFIX}"
        self.run(("mkdir", "-p", str(file.path.parent)))
        mode = f"{file.mode:o}"
        self.run(("install", "-m", mode, "-o", user, "-g", group, "/dev/null", new))
        self.run(("dd", "status=none", "conv=fsync,notrunc", f"of={new}"), stdin=file.text)
        self.run(("mv", "-f", "-T", new, str(file.path)))


def _no_ssh(host: str, reason: str) -> HostUnreachable:
    """Make the error for a failed connection.

    reason: in the words of paramiko, which has no error of its own for an unknown host key.
    """
    strange = "Host key for server" in reason or "not found in known_hosts" in reason
    return HostKeyWrong(host, reason) if strange else HostUnreachable(host, reason)


def look(wanted: WantedHost, root: Root) -> Observed:
    """Observe a host. Raises HostUnreachable, SudoRefused."""
    root.run(("true",))
    return observe(wanted, root.ask, cookie_copy=COOKIE_COPY)


def check_room(root: Root, *, host: str) -> None:
    """Raise NoRoom where the disk has too little room, before a change stops half-way."""
    output = root.run(("df", "--output=avail", "-B1", "/")).split()
    free_mb = int(output[-1]) // 1_000_000
    if free_mb < FREE_MB_MIN:
        raise NoRoom(host, free_mb, FREE_MB_MIN)


def make(
    changes: Sequence[Change], root: Root, program: Program, *, say: Callable[[str], None]
) -> None:
    """Make the changes in their order. say: called before each.

    Raises CommandFailed; a second run does the rest.
    """
    for change in changes:
        say(change.what)
        if change.file:
            root.write(change.file)
        elif change.program:
            root.run(unpack_command(program), stdin=program.text, within_s=UNPACK_WITHIN_S)
        elif change.argv:
            root.run(change.argv, within_s=change.within_s)
