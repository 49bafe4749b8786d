"""Supervisor of several processes of one worker: it starts them, restarts crashed ones, stops all together.

The parent imports nothing of the application, so nothing of it can harm the parent. A first child that
cannot import it, or cannot reach the bus, ends all with a reason. Once any child has worked, a child that
ends is replaced, whatever ended it, and the others go on. Children are told to stop over their sockets, not
by signals: the process that started us may have sent them one already.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from messagebus.core.route import backoff_ms
from messagebus.http.probes import Answer, Ask
from messagebus.worker.health import NO_METRICS, respond, scraped
from messagebus.worker.process import LEAVE_AFTER_S, STOP
from messagebus.worker.pulse import LIVE_S, Look

PARENT_OPTION = "--parent-fd"
EXIT_STOPPED, EXIT_FAILED, EXIT_USAGE, EXIT_SILENT = 0, 1, 2, 6
# Ends by a signal that a terminal or systemd sends to all, before the child has set its handlers.
ENDED_EARLY = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)
RESTART_FIRST_MS, RESTART_MAX_MS = 1_000, 30_000
# A child that lived longer had no trouble at its start: the next wait is the shortest again.
STEADY_S = 60.0
# The other children wait at most this long for the first one to import the application, which may fail.
LOADED_S = 60.0
LINE_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class _Child:
    """Place of a supervisor, and the process in it."""

    number: int
    process: asyncio.subprocess.Process | None = None
    line: socket.socket | None = None
    look: Look = field(default_factory=lambda: {"ready": False, "status": "starting"})
    port: int | None = None  # where it shows its own metrics
    heard: bool = False
    heard_s: float = 0.0
    failures: int = 0

    @property
    def name(self) -> str:
        return f"worker {self.number}"


class Supervisor:
    """Supervisor of worker processes.

    command: of a child; it gets its end of a socket as `PARENT_OPTION`. say: prints a line for people.
    """

    def __init__(
        self, command: Sequence[str], processes: int, *, grace_s: float, say: Callable[[str], None]
    ) -> None:
        self._command, self._grace_s, self._say = list(command), grace_s, say
        self._children = [_Child(number) for number in range(1, processes + 1)]
        self._stopping = asyncio.Event()
        self._loaded = asyncio.Event()
        self._has_worked = False
        self._code = EXIT_STOPPED

    async def run(self) -> int:
        """Run until SIGTERM, SIGINT, or a first child that fails. Returns the exit code.

        0: all stopped in order; 1: not all; 2: the application does not import, and never did; 6: it never
        reached the bus.
        """
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._stop)
        first, *others = self._children
        keeping = [asyncio.create_task(self._keep(first))]
        # The others start once the first has imported the application, so that its fault is reported once.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), LOADED_S)
        keeping += [asyncio.create_task(self._keep(child)) for child in others]
        await asyncio.gather(*keeping)
        return self._code

    def _stop(self) -> None:
        """Ask all children to stop; the second time kill them."""
        again = self._stopping.is_set()
        self._stopping.set()
        self._loaded.set()
        for child in self._children:
            if again:
                _kill(child)
            else:
                _ask_to_stop(child)

    async def _keep(self, child: _Child) -> None:
        while not self._stopping.is_set():
            started_s = time.monotonic()
            ended = await self._live(child)
            if self._stopping.is_set():
                if not is_polite(ended, heard=child.heard):
                    self._code = self._code or EXIT_FAILED
                return
            if ended in (EXIT_USAGE, EXIT_SILENT) and not self._has_worked:
                self._code = ended
                self._stop()
                return
            steady = time.monotonic() - started_s > STEADY_S
            child.failures = 1 if steady else child.failures + 1
            await self._pause(child, ended)

    async def _live(self, child: _Child) -> int:
        """Run a child once. Returns its exit code, negative for a signal."""
        ours, theirs = socket.socketpair()
        try:
            with contextlib.closing(theirs):
                child.process = process = await asyncio.create_subprocess_exec(
                    *self._command, PARENT_OPTION, str(theirs.fileno()), pass_fds=[theirs.fileno()]
                )
        except OSError as fault:  # no memory or no process left, for now
            ours.close()
            self._say(f"{child.name} cannot be started: {fault.strerror}")
            return EXIT_FAILED
        child.line, child.heard, child.heard_s = ours, False, time.monotonic()
        reading = asyncio.create_task(self._hear(child, ours))
        if self._stopping.is_set():  # asked while it was being started
            _ask_to_stop(child)
        try:
            return await self._ended(child, process)
        finally:
            child.process = child.port = child.line = None
            child.look = {"ready": False, "status": "ended"}
            reading.cancel()
            await asyncio.wait([reading])
            ours.close()

    async def _ended(self, child: _Child, process: asyncio.subprocess.Process) -> int:
        """Wait for its end; once all are stopping, at most the grace and LEAVE_AFTER_S, then kill it."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            await asyncio.wait([ended], timeout=self._grace_s + LEAVE_AFTER_S)
        if not ended.done():
            self._say(f"{child.name} (pid {process.pid}) does not end: killed")
            _kill(child)
        return await ended

    async def _hear(self, child: _Child, line: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=line, limit=LINE_BYTES_MAX)
        try:
            while told := await reader.readline():
                said = json.loads(told)
                child.look, child.port, child.heard_s = said["look"], said["port"], time.monotonic()
                child.heard = self._has_worked = True
                self._loaded.set()
        except ConnectionError:
            pass  # it has ended, with something unread
        except (OSError, ValueError, LookupError, TypeError) as fault:
            self._say(f"{child.name} cannot be understood: {type(fault).__name__}")
        finally:
            writer.close()

    async def _pause(self, child: _Child, ended: int) -> None:
        wait_ms = backoff_ms(
            child.failures, first_ms=RESTART_FIRST_MS, max_ms=RESTART_MAX_MS, share=random.random()
        )
        self._say(f"{child.name} {how_it_ended(ended)}; again in {wait_ms / 1000:.1f} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)

    # Health.
    def ask(self) -> Ask:
        """Return the answers for all children; callable on any thread."""

        def ask(path: str) -> Answer:
            if path == "/metrics":
                return _metrics({child.name: child.port for child in self._children})
            now_s = time.monotonic()
            # An application may be imported for as long as it likes: see /ready.
            late = [
                f"{child.name}: no turn for {now_s - child.heard_s:.1f} s"
                for child in self._children
                if child.process is not None and child.heard and now_s - child.heard_s > LIVE_S
            ]
            looks = {child.name: child.look for child in self._children}
            stopping = self._stopping.is_set()
            return respond(path, together(looks, stopping), "; ".join(late) or None)

        return ask


def together(looks: dict[str, Look], stopping: bool) -> Look:
    """Combine the states of all children: ready when all are."""
    return {
        "ready": not stopping and all(each["ready"] for each in looks.values()),
        "status": "stopping" if stopping else "running",
        "workers": looks,
    }


def _metrics(ports: Mapping[str, int | None]) -> Answer:
    if find_spec("prometheus_client") is None:
        return NO_METRICS
    return Answer(200, *scraped(ports))


def is_polite(code: int, *, heard: bool) -> bool:
    """Return whether a child that was told to end did so in order. heard: it had begun its work."""
    return code == EXIT_STOPPED or (code in ENDED_EARLY and not heard)


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _ask_to_stop(child: _Child) -> None:
    """Ask a child to stop; its `Parent` reads this at the latest when the child has begun to run."""
    if child.line is not None:
        with contextlib.suppress(OSError):
            child.line.send(STOP, socket.MSG_DONTWAIT)


def _kill(child: _Child) -> None:
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()


def child_command(
    target: str,
    *,
    grace_s: float,
    verbose: bool = False,
    form: str = "text",
    shows_metrics: bool = False,
) -> list[str]:
    """Return the command that runs this worker again, as one process."""
    command = [sys.executable, "-m", "messagebus", "worker", target, "--grace-s", f"{grace_s:g}"]
    health = ["--health", "127.0.0.1:0"] if shows_metrics else []
    return [*command, "--log", form, *health, *(["--verbose"] if verbose else [])]
