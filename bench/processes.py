"""Child processes that a coordinator starts, watches and stops, always by their own pid.

Each runs in a session of its own, so that Ctrl-C in a terminal reaches only the coordinator, which
then ends them in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.environment import CHECKOUT
from bench.errors import BenchError

# A load process may have to wait for open publishes; after this time it is killed.
STOP_WITHIN_S = 20.0
KILL_WITHIN_S = 5.0
POLL_S = 0.05
IN_ALL = 6
# Below Linux's range of ephemeral ports: no client's own port comes there before a server does.
SERVER_PORTS = range(12_000, 20_000)
LOG_TAIL_BYTES = 4096


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens at, chosen by chance. Raises BenchError without one."""
    for port in random.sample(SERVER_PORTS, len(SERVER_PORTS)):
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise BenchError(f"no free port on {host} in {SERVER_PORTS}")


def wait_until(
    condition: Callable[[], object],
    *,
    within_s: float,
    what: str | Callable[[], str],
    check: Callable[[], object] = lambda: None,
    moves: Callable[[], object] = lambda: None,
) -> None:
    """Wait for a condition. Raises BenchError when it does not hold in time.

    check: called meanwhile; may raise. moves: returns a value whose changes are progress, such as a count or
    the size of a log: the time starts again with each, up to IN_ALL times.
    """
    began_s = since_s = time.monotonic()
    before = moves()
    while not condition():
        check()
        now_s = time.monotonic()
        if (after := moves()) != before:
            before, since_s = after, now_s
        if now_s - since_s > within_s or now_s - began_s > IN_ALL * within_s:
            said = what if isinstance(what, str) else what()
            raise BenchError(f"not within {now_s - began_s:.0f} s: {said}")
        time.sleep(POLL_S)


def run(
    argv: Sequence[str],
    *,
    within_s: float,
    what: str,
    cwd: Path = CHECKOUT,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end; return its standard output. Raises BenchError with its last line."""
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{what}: no end within {within_s:.0f} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
        raise BenchError(f"{what}: {said[-1]}")
    return done.stdout


class Answering:
    """A process that is controlled by lines, and answers in lines. It ends when its input ends."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], answer_within_s: float) -> None:
        self._name = " ".join(argv[1:3])
        self._within_s = answer_within_s
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the exit
        self._process = subprocess.Popen(
            argv,
            cwd=CHECKOUT,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            # Linux gives each session its share of a busy processor, as each server's.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str = "") -> None:
        """Send a line. Raises BenchError when the process has ended."""
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._fault("it ended") from None

    def line(self) -> str:
        """Read the next line. Raises BenchError when none comes."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], self._within_s)
        if not readable:
            raise self._fault(f"no answer within {self._within_s:.0f} s")
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise self._fault("it ended")
        return line.strip()

    def answer(self) -> Any:
        """Read the next line, which is JSON. Raises BenchError."""
        return json.loads(self.line())

    def _fault(self, what: str) -> BenchError:
        """Return an error with the last line of what it has complained."""
        self._process.kill()
        self._process.wait(KILL_WITHIN_S)
        self._complaints.seek(0)
        last = (self._complaints.read().strip() or "it said nothing").splitlines()[-1]
        return BenchError(f"{self._name}: {what}: {last}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes, which ends the process; kill it if it does not end."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=STOP_WITHIN_S)
        self._process.kill()
        self._process.wait(KILL_WITHIN_S)
        self._complaints.close()


@dataclass(slots=True)
class Child:
    """One process. log: its standard output and error."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def is_present(self) -> bool:
        """Return whether it, or a process of its group, still runs."""
        if self.exit_code is None:
            return True
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def last_line(self) -> str:
        """Return the last line of its log, "" if there is none."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            said = file.read().decode(errors="replace").strip().splitlines()
        return said[-1].strip() if said else ""


class Children:
    """All processes of one coordinator. logs: folder for NAME.log."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._all: dict[str, Child] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Child:
        """Start a process under a unique name. Raises BenchError when it cannot be started."""
        log = self._logs / f"{name}.log"
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    argv,
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as fault:
            raise BenchError(f"{name}: cannot start {argv[0]}: {fault.strerror}") from fault
        child = self._all[name] = Child(name, process, log)
        return child

    @property
    def names(self) -> list[str]:
        return list(self._all)

    def child(self, name: str) -> Child:
        return self._all[name]

    def log_bytes(self) -> int:
        """Return the size of all logs together, which grows while processes do something."""
        return sum(child.log.stat().st_size for child in self._all.values())

    def pid(self, name: str) -> int:
        return self._all[name].process.pid

    def check(self, names: Iterable[str], *, may_end: bool = False) -> None:
        """Check these processes. Raises BenchError when one failed, or ended although it may not."""
        for name in names:
            child = self._all[name]
            code = child.exit_code
            if code is None or (may_end and code == 0):
                continue
            raise BenchError(f"{name} ended by itself ({_how(code)}): {_last_line(child)}")

    def running(self, names: Iterable[str] | None = None) -> list[str]:
        """Return the names of those that still run, among these or among all."""
        chosen = self._all if names is None else names
        return [name for name in chosen if self._all[name].exit_code is None]

    def terminate(self, names: Iterable[str]) -> None:
        """Send SIGTERM to these processes; does not wait."""
        for name in self.running(names):
            self._all[name].process.send_signal(signal.SIGTERM)

    def stop_all(self) -> list[str]:
        """End all processes, first by SIGTERM. Returns the names of the processes it had to kill.

        A process has ended with all of its group: a JVM outlives the Python that started it by a moment.
        """
        wanted = [self._all[name] for name in self.running()]
        self.terminate(child.name for child in wanted)
        _wait_gone(wanted, STOP_WITHIN_S)
        left = [child for child in wanted if child.is_present()]
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
        _wait_gone(left, KILL_WITHIN_S)
        return [child.name for child in left]


def _wait_gone(children: Sequence[Child], within_s: float) -> None:
    until = time.monotonic() + within_s
    while any(child.is_present() for child in children) and time.monotonic() < until:
        time.sleep(POLL_S)


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_line(child: Child) -> str:
    return child.last_line() or f"it said nothing ({child.log})"
