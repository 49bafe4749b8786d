"""Runner of commands, here or over SSH. The only user of sh and Fabric.

Commands are argv lists; nothing is ever read by a shell here, and quoting for the shell at the far
end of SSH happens in this file.

User, key and jump hosts for a host come from ~/.ssh/config, or from the file that
$MESSAGEBUS_SSH_CONFIG names. No data are sent to a host whose key is not known.
"""

from __future__ import annotations

import os
import queue
import shlex
import socket
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import sh

from inventory.errors import CommandFailed

ENV_SSH_CONFIG = "MESSAGEBUS_SSH_CONFIG"
TIMED_OUT = -1
NOT_FOUND = 127
SSH_CONNECT_WITHIN_S = 10
# A kernel answers at once, however busy its host is. Linux asks after 0, 1 and 3 s at the latest, so this
# allows for two lost packets. A failover waits for it, because its host is dead.
TCP_CONNECT_WITHIN_S = 3.5
# Interval of keepalives on a connection, and the silence after which it is lost: its host may have
# been switched off, which nothing else reports.
ALIVE_EVERY_S = 3
SILENT_WITHIN_S = 15
# Timeout of writing a file at the far end, with sync and move.
WRITE_WITHIN_S = 30.0
# Time from the order to end a process of ours until it is killed.
END_WITHIN_S = 5.0


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    keeps: Collection[int] = (),
) -> str:
    """Run a command on this machine and return its output. on_line: called with each line meanwhile.

    keeps: inheritable descriptors that its process keeps open, but none that it starts.
    Raises CommandFailed, with the whole output, for another exit code than 0 or after timeout_s.
    """
    written: list[str] = []

    def wrote(line: str) -> None:
        written.append(line)
        on_line(line.rstrip())

    try:
        # sh keeps a process's last 750 bytes in its errors, so the output is kept here.
        sh.Command(argv[0])(
            *argv[1:],
            _timeout=timeout_s,
            _cwd=str(cwd or Path.cwd()),
            _env=dict(os.environ),
            _out=wrote,
            _err=wrote,
            _tty_out=False,
            _pass_fds=set(keeps),
        )
    except sh.CommandNotFound as fault:
        raise CommandFailed(argv, NOT_FOUND, f"no such program: {argv[0]}") from fault
    except sh.TimeoutException as fault:
        raise CommandFailed(argv, TIMED_OUT, "".join(written)) from fault
    except sh.ErrorReturnCode as fault:
        raise CommandFailed(argv, fault.exit_code, "".join(written)) from fault
    return "".join(written)


class Remote:
    """One SSH connection to a host, for several commands; the next command opens a dead one anew."""

    def __init__(self, host: str, connection: Any) -> None:
        """connection: Fabric's, or a double of it."""
        self._host = host
        self._connection = connection
        self._dialling = threading.Lock()

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str:
        """Run a command on the host, and return its output. stdin: never shown, never kept.

        Raises CommandFailed as `run`; NOT_FOUND stands for no connection, too.
        """
        try:
            code, output, errors = self._exchange(shlex.join(argv), stdin.encode(), timeout_s)
        except _ssh_faults() as fault:
            raise CommandFailed(argv, NOT_FOUND, f"SSH: {fault}", self._host) from fault
        if code != 0:
            raise CommandFailed(argv, code, output + errors, self._host)
        return output

    def _exchange(self, line: str, stdin: bytes, timeout_s: float) -> tuple[int, str, str]:
        """Return exit code, standard output, standard error. The code is TIMED_OUT after the timeout.

        Uses the connection that Fabric made, but not its `run`: that feeds a command one letter in
        10 ms.
        """
        channel = self._session()
        deadline = threading.Timer(timeout_s, _close, [channel])
        deadline.start()
        try:
            channel.exec_command(line)
            with suppress(OSError):  # it may end without reading all of it
                channel.sendall(stdin)
                channel.shutdown_write()
            output = channel.makefile("rb").read()
            errors = channel.makefile_stderr("rb").read()
            return channel.recv_exit_status(), _text(output), _text(errors)
        finally:
            deadline.cancel()
            _close(channel)

    def _session(self) -> Any:
        """Open a channel. Nothing was sent on it yet, so it is safe to try again on a new connection."""
        with self._dialling:
            if self._connection.is_connected:
                try:
                    return self._connection.transport.open_session(timeout=SSH_CONNECT_WITHIN_S)
                except _ssh_faults():
                    self._connection.close()
            self._connection.open()
            _notice_silence(self._connection.transport)
            return self._connection.transport.open_session(timeout=SSH_CONNECT_WITHIN_S)

    def write(self, path: Path, text: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        """Replace a file on the host: a reader sees the old or the new one, and a power-off loses neither.

        sudo: as root, where the SSH user is not. Raises CommandFailed; the old file stands then.
        """
        part = str(path.with_name(f".{path.name}.part"))
        folder = str(path.parent)
        prefix = ("sudo", "-n", "--") if sudo else ()
        for argv, stdin in (
            (["mkdir", "-p", folder], ""),
            (["install", "-m", f"{mode:o}", "/dev/null", part], ""),
            (["dd", "status=none", "conv=fsync,notrunc", f"of={part}"], text),
            (["mv", "-f", "-T", part, str(path)], ""),
            (["sync", folder], ""),
        ):
            self.run([*prefix, *argv], timeout_s=WRITE_WITHIN_S, stdin=stdin)


class _Connections:
    """Connections to hosts. While they are kept, there is one to each host, made with its first command.

    Any thread may ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: dict[str, Remote] = {}
        self._open: ExitStack | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        if self._open is not None:  # by a caller of ours
            yield
            return
        with ExitStack() as self._open:
            try:
                yield
            finally:
                self._open, self._by_host = None, {}

    @contextmanager
    def to(self, host: str) -> Iterator[Remote]:
        with self._lock:
            if self._open is not None and host not in self._by_host:
                self._by_host[host] = self._open.enter_context(_connection(host))
            remote = self._by_host.get(host)
        if remote is not None:
            yield remote
            return
        with _connection(host) as remote:
            yield remote


_connections = _Connections()


def connections_kept() -> AbstractContextManager[None]:
    """Keep the connections of `remote` open for the next caller meanwhile: each costs a second or two."""
    return _connections.kept()


def remote(host: str) -> AbstractContextManager[Remote]:
    """Connect to ``[user@]host[:port]`` with the first command; see also `connections_kept`."""
    return _connections.to(host)


@contextmanager
def _connection(host: str) -> Iterator[Remote]:
    # Fabric takes a moment to import, which the local cluster need not wait for.
    from fabric import Config, Connection
    from paramiko.client import RejectPolicy

    config = Config(runtime_ssh_path=os.environ.get(ENV_SSH_CONFIG))
    with Connection(host, config=config, connect_timeout=TCP_CONNECT_WITHIN_S) as connection:
        # Fabric would take any key of a host that it does not know yet.
        connection.client.set_missing_host_key_policy(RejectPolicy())
        for file in _known_hosts(connection.ssh_config):
            with suppress(FileNotFoundError):
                connection.client.load_host_keys(file)
        yield Remote(host, connection)


def run_over_ssh(host: str, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str:
    """Run one command on another host. Raises CommandFailed as `run`."""
    with remote(host) as there:
        return there.run(argv, timeout_s=timeout_s, stdin=stdin)


@contextmanager
def forwarded(
    host: str, socket: Path, *, lock: Path | None = None, within_s: float = 20.0
) -> Iterator[Path]:
    """Forward a Unix socket of another host to this machine. lock: a file that is locked meanwhile.

    Nothing needs to listen there. The lock ends with the connection, however that ends.
    Raises CommandFailed when SSH or the lock is not available within_s.
    """
    argv = [*(("flock", "-w", f"{within_s:.0f}", str(lock)) if lock else ()), "cat"]
    output, words = _RemoteOutput(), queue.Queue[str | None]()
    with tempfile.TemporaryDirectory(prefix="mb-ssh-") as folder:
        here = Path(folder) / "socket"
        ssh = sh.Command("ssh")(
            *_ssh_options(),
            *("-L", f"{here}:{socket}", f"ssh://{host}", shlex.join(argv)),
            _in=words,
            _out=output.add,
            _err=output.add,
            _done=output.ended,
            _bg=True,
            _bg_exc=False,
            _tty_out=False,
            _env=dict(os.environ),
        )
        try:
            words.put(_RemoteOutput.HELD)
            if not output.is_held(within_s + SSH_CONNECT_WITHIN_S):
                raise CommandFailed(argv, output.exit_code, "".join(output.lines), host)
            yield here
        finally:
            words.put(None)
            _end(ssh)


class _RemoteOutput:
    """Output of the far end of a forwarded socket.

    The line HELD comes back from `cat` there, once the lock is held.
    """

    HELD = "held\n"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.exit_code = TIMED_OUT
        self._news = threading.Event()

    def add(self, line: str) -> None:
        self.lines.append(line)
        if line == self.HELD:
            self._news.set()

    def ended(self, _command: Any, _success: bool, exit_code: int) -> None:
        self.exit_code = exit_code
        self._news.set()

    def is_held(self, within_s: float) -> bool:
        self._news.wait(within_s)
        return self.HELD in self.lines


def _end(process: Any) -> None:
    try:
        process.wait(timeout=END_WITHIN_S)
    except sh.TimeoutException:
        process.kill()
    except sh.ErrorReturnCode:
        pass  # it was asked to end; an earlier end was reported already


def ssh_command(host: str, argv: Sequence[str]) -> list[str]:
    """Return the command here that runs argv on another host, with its standard input and output."""
    return ["ssh", *_ssh_options(), f"ssh://{host}", shlex.join(argv)]


def _ssh_options() -> list[str]:
    config = os.environ.get(ENV_SSH_CONFIG)
    return [
        *(("-F", config) if config else ()),
        *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_CONNECT_WITHIN_S}"),
        *("-o", "ExitOnForwardFailure=yes", "-o", "StrictHostKeyChecking=yes"),
        *("-o", f"ServerAliveInterval={ALIVE_EVERY_S}"),
        *("-o", f"ServerAliveCountMax={SILENT_WITHIN_S // ALIVE_EVERY_S}"),
    ]


def _close(channel: Any) -> None:
    """Close a channel, whose connection may be gone: paramiko raises EOFError then."""
    with suppress(EOFError, OSError):
        channel.close()


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _known_hosts(settings: Any) -> list[str]:
    """Return the files of host keys; paramiko does not look for them in OpenSSH's settings."""
    named = settings.get("userknownhostsfile", "~/.ssh/known_hosts").split()
    return [str(Path(name).expanduser()) for name in (*named, "/etc/ssh/ssh_known_hosts")]


def _notice_silence(transport: Any) -> None:
    transport.set_keepalive(ALIVE_EVERY_S)
    if isinstance(transport.sock, socket.socket):  # and not a channel of another host
        limit_ms = SILENT_WITHIN_S * 1000
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


def _ssh_faults() -> tuple[type[Exception], ...]:
    from paramiko.ssh_exception import SSHException

    return (OSError, SSHException, EOFError)


def fabric_task(function: Callable[..., Any], several: Collection[str] = ()) -> Any:
    """Make a function a task of `fab`. several: names of options that may be given more than once."""
    from fabric import task

    return task(iterable=sorted(several))(function)
