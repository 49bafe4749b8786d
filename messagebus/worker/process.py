"""One worker: an app on the main thread's loop until a signal, its health, its end in one line."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping

from messagebus.app import App
from messagebus.worker.health import HealthServer, answer_of
from messagebus.worker.metrics import metrics_of
from messagebus.worker.pulse import Look, Pulse, Watchdog, beat

__all__ = ["EXIT_STOPPED", "EXIT_UNFINISHED", "Parent", "say", "work"]

log = logging.getLogger("messagebus.worker")

EXIT_STOPPED, EXIT_UNFINISHED = 0, 1
READ_BYTES = 1024


def say(text: str) -> None:
    """One line for people."""
    print(f"messagebus: {text}", file=sys.stderr, flush=True)


class Parent:
    """A worker's line to the process that supervises it.

    Told the pulse as lines of JSON; when the parent ends, however it does, the line ends, and the app is
    asked to stop: nobody would look after it any more.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def tell(self, look: Look, port: int | None) -> None:
        """port: of our own health server. Never waits: a parent that does not read misses a beat."""
        told = json.dumps({"look": look, "port": port}, default=str)
        try:
            self._line.send(told.encode() + b"\n", socket.MSG_DONTWAIT)
        except OSError:
            return

    def watch(self, app: App) -> None:
        """Returns at once; goes on in a thread."""
        threading.Thread(
            target=self._wait, args=(app,), name="messagebus-parent", daemon=True
        ).start()

    def _wait(self, app: App) -> None:
        try:
            while self._line.recv(READ_BYTES):
                pass
        except OSError:
            pass
        app.request_stop()


def work(
    app: App, *, grace_s: float, health: tuple[str, int] | None = None, parent: Parent | None = None
) -> int:
    """Run the app until SIGTERM or SIGINT. Returns the exit code.

    0: everything that ran was finished and answered; 1: not all, and a line says what. Raises what
    `App.run` raises.
    """
    return asyncio.run(_work(app, grace_s, health, parent))


async def _work(
    app: App, grace_s: float, health: tuple[str, int] | None, parent: Parent | None
) -> int:
    pulse = Pulse()

    def tell(look: Look) -> None:
        pulse.tell(look)
        if parent is not None:
            parent.tell(look, None if server is None else server.port)

    server = None if health is None else HealthServer(health, answer_of(pulse, metrics_of(app)))
    watchdog = Watchdog(pulse, threading.get_ident())
    beating = asyncio.create_task(beat(app, tell))
    watchdog.start()
    if parent is not None:
        parent.watch(app)
    for name, handler in app.handlers.items():
        log.info("handling subscription=%s handler=%s", name, handler)
        if sys.stderr.isatty():  # who waits at a terminal wants to see that something runs
            say(f"handling {name} with {handler}")
    try:
        left = await app.run(grace_s=grace_s)
    finally:
        watchdog.stop()
        beating.cancel()
        if server is not None:
            server.close()
    if left:
        say(unfinished(app.unanswered, grace_s))
        _leave(EXIT_UNFINISHED)
    return EXIT_STOPPED


def unfinished(unanswered: Mapping[str, int], grace_s: float) -> str:
    """What could not be finished, in one line."""
    counts = ", ".join(f"{name} {count}" for name, count in unanswered.items() if count)
    return (
        f"stopped; not finished within {grace_s:g} s, to be delivered again: {counts or 'unknown'}"
    )


def _leave(code: int) -> None:
    """Without waiting for threads: a handler that never returns would keep the process for ever."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
