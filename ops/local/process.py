"""Long-lived processes: start them, find them again in another run, signal them, wait for their end.

A process is identified by its pid and its start time (field 22 of /proc/PID/stat), so a pid that now
belongs to another process is never signalled. All processes that a part starts carry a mark in their
environment, so that children are found although they leave its process group.

These processes outlive the command that starts them, which `sh` is not made for; `inventory.shell` runs
commands that end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARK = "MB_LOCAL_PART"
POLL_S = 0.02
# States of a process that starts no other: stopped, traced, ended.
STOPPED = ("T", "t", "Z", "X", "")
# SIGKILL needs no consent, but a process in a disk write ends only when that is done.
KILL_WITHIN_S = 10.0


class Process(NamedTuple):
    """One process. started: in ticks since the machine's boot."""

    pid: int
    started: int

    @property
    def state(self) -> str:
        """The state: R, S, D, T (stopped by a signal), ... as in proc(5); "" when it has ended.

        Z is a process whose first thread has ended and others not yet: its sockets are still open.
        """
        stat = _stat(self.pid)
        if stat is None or stat[1] != self.started:
            return ""
        if stat[0] in "ZX" and not _has_threads(self.pid):
            # Only its parent can take it off the table; harmless when that is not us.
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            return ""
        return stat[0]

    @property
    def cpu_ticks(self) -> int:
        """The processor time that it and its ended children have used, in ticks; 0 when it has ended."""
        fields = _stat_fields(Path(f"/proc/{self.pid}"))
        is_it = len(fields) > 19 and int(fields[19]) == self.started
        return sum(map(int, fields[11:15])) if is_it else 0

    @property
    def is_alive(self) -> bool:
        return bool(self.state)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    pid_file: Path,
    mark: str,
    keep_fds: Iterable[int] = (),
) -> Process:
    """Start a program in a session of its own and write its pid file.

    log: its standard output and standard error are appended to it. keep_fds: descriptors it inherits, and no
    others: locks of the playbook that starts it would never end.
    """
    kept = frozenset(keep_fds)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        {**env, MARK: mark},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in kept),
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable() if fd not in kept),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGHUP],
    )
    stat = _stat(pid)
    process = Process(pid, stat[1] if stat else 0)
    pid_file.write_text(f"{process.pid} {process.started}\n")
    return process


def _inheritable() -> Iterator[int]:
    """Yield the descriptors that a started program would get, but those of standard streams."""
    for fd in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # that of the listing itself has been closed
            if fd > 2 and os.get_inheritable(fd):
                yield fd


def recorded(pid_file: Path) -> Process | None:
    """Return the process in a pid file, alive or not; None when there is no valid file."""
    try:
        pid, started = pid_file.read_text().split()
        return Process(int(pid), int(started))
    except (OSError, ValueError):
        return None


def find(pid_file: Path) -> Process | None:
    """Return the process of a pid file, if it still runs."""
    process = recorded(pid_file)
    return process if process and process.is_alive else None


def marked(mark: str) -> list[Process]:
    """Return all processes of this user whose mark begins with this text, children included."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(wanted) for word in environ) and (stat := _stat(int(entry.name))):
            found.append(Process(int(entry.name), stat[1]))
    return [process for process in found if process.is_alive]


def family(process: Process) -> list[Process]:
    """Return a process and all that descend from it, alive or not.

    PostgreSQL's children hide their environment, and with it their mark.
    """
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            parents.setdefault(parent, []).append(int(entry.name))
    found = [process]
    for one in found:
        for pid in parents.get(one.pid, ()):
            if stat := _stat(pid):
                found.append(Process(pid, stat[1]))
    return found


def hold(process: Process) -> list[Process]:
    """Stop a process and all that descend from it by SIGSTOP, and return them.

    None of them starts another meanwhile: one that was missed would outlive a kill of the others, and
    PostgreSQL does not start while a child of the server before still has its memory.
    """
    held: list[Process] = []
    while new := [one for one in family(process) if one not in held]:
        for one in new:
            send(one, signal.SIGSTOP)
        wait_stopped(new)
        held += new
    return held


def wait_stopped(processes: Iterable[Process]) -> None:
    """Wait until no thread of these, which got SIGSTOP, runs any more.

    One thread takes the signal, and stops the others when it gets a processor: on a busy machine they go on
    for a third of a second, and a broker answers. A thread in an uninterruptible wait (D) stops before it
    runs on. A shell that waits in vfork for a stopped child leaves that wait only with the child.
    """
    _wait_while(_runs_on, processes, within_s=KILL_WITHIN_S)


def _runs_on(process: Process) -> bool:
    return process.is_alive and not _states_of_threads(process.pid) <= {*STOPPED, "D"}


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process. Returns False when it has ended."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor always means the same process, so there is no race between look and signal.
        if not process.is_alive:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def kill(processes: Iterable[Process]) -> None:
    """End these at once and wait until they are gone."""
    ending = [process for process in processes if send(process, signal.SIGKILL)]
    wait_gone(ending, within_s=KILL_WITHIN_S)


def wait_gone(processes: Iterable[Process], *, within_s: float) -> list[Process]:
    """Wait until these have ended. Returns those that have not ended in time."""
    return _wait_while(lambda process: process.is_alive, processes, within_s=within_s)


def _wait_while(
    condition: Callable[[Process], bool], processes: Iterable[Process], *, within_s: float
) -> list[Process]:
    """Wait while the condition holds for any. Returns those for which it still holds."""
    left = [process for process in processes if condition(process)]
    until = time.monotonic() + within_s
    while left and time.monotonic() < until:
        time.sleep(POLL_S)
        left = [process for process in left if condition(process)]
    return left


def _has_threads(pid: int) -> bool:
    """Return whether a thread beside the first is left."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


def _states_of_threads(pid: int) -> set[str]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return set()
    return {fields[0] for thread in threads if (fields := _stat_fields(thread))}


def _stat(pid: int) -> tuple[str, int] | None:
    """Return state and start time."""
    fields = _stat_fields(Path(f"/proc/{pid}"))
    return (fields[0], int(fields[19])) if fields else None


def _parent(pid: int) -> int | None:
    fields = _stat_fields(Path(f"/proc/{pid}"))
    return int(fields[1]) if fields else None


def _stat_fields(folder: Path) -> list[str]:
    """Return the fields behind the name of a process or thread, which may hold anything in parentheses."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []
