"""Worker process: an app, imported by name, that runs on the main thread's loop until a signal.

The end, and a failure of the import, is one clear line.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType

from messagebus.app import GRACE_S, App
from messagebus.errors import ConfigError
from messagebus.handling import Words
from messagebus.http.probes import ProbeServer
from messagebus.worker.health import answer_of, metrics_of
from messagebus.worker.pulse import Look, Pulse, Watchdog, beat, look, of_application

log = logging.getLogger("messagebus.worker")

EXIT_STOPPED, EXIT_UNFINISHED = 0, 1
READ_BYTES = 1024
STOP = b"stop\n"
# Beyond the handlers' grace: last answers, copies and confirms, hanging up (see `App.stop`).
LEAVE_AFTER_S = 20.0
# Limit of the application's exit functions: exporters of spans, recorders.
ATEXIT_S = 5.0
DEFAULT_NAME = "app"


def say(text: str) -> None:
    """Print one line for people."""
    print(f"messagebus: {text}", file=sys.stderr, flush=True)


class Parent:
    """Connection of a worker to the process that supervises it, from the first moment to the last.

    It sends the pulse as lines of JSON. When the parent asks for it, or ends in any way, the app is asked to
    stop, because it would be without supervision. While there is no app yet, and when the app does not end
    in time, the process exits at once; so no child outlives its parent for long, whatever it does.
    """

    def __init__(
        self,
        line: socket.socket,
        *,
        grace_s: float = GRACE_S,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """line: this end of the connection. leave: ends the process with this code, at once."""
        self._line, self._grace_s, self._leave = line, grace_s, leave
        self._lock = threading.Lock()
        self._app: App | None = None
        self._unsent = b""
        line.set_inheritable(False)  # processes that the application starts do not get it
        threading.Thread(target=self._wait, name="messagebus-parent", daemon=True).start()

    def tell(self, look: Look, port: int | None) -> None:
        """Send the state; never wait: a parent that does not read misses a beat. port: our health server's.

        A line is sent whole, over several beats if the socket takes no more of it: half a line would be the
        last that the parent understands.
        """
        if not self._unsent:
            told = json.dumps({"look": look, "port": port}, default=str)
            self._unsent = told.encode() + b"\n"
        with contextlib.suppress(OSError):
            while self._unsent:
                sent = self._line.send(self._unsent, socket.MSG_DONTWAIT)
                self._unsent = self._unsent[sent:]

    def watch(self, app: App) -> None:
        """Ask this app to stop from now on; until now it was being imported, and held nothing."""
        with self._lock:
            self._app = app

    def stop(self) -> None:
        """Stop as if the parent had asked; any number of times, also in a signal's handler."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RD)

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            self._line.recv(READ_BYTES)  # any message, and the end of the connection too
        with self._lock:
            app = self._app
            if app is None:
                self._leave(EXIT_STOPPED)
                return
        app.request_stop()
        time.sleep(self._grace_s + LEAVE_AFTER_S)  # a thread that goes with the process
        say("does not end: left")
        self._leave(EXIT_UNFINISHED)


def work(
    app: App | Callable[[], App],
    *,
    grace_s: float,
    health: tuple[str, int] | None = None,
    health_names: Collection[str] = (),
    parent: Parent | None = None,
) -> int:
    """Run the app until SIGTERM or SIGINT. Returns the exit code.

    app: or a function that imports it; it is called when health checks are answered already. 0: everything
    that ran was finished and answered; 1: not all, and a line says what. Raises what `App.run` raises.
    Threads that the application began keep the process for LEAVE_AFTER_S afterwards, not longer.
    """
    pulse = Pulse()
    server = None if health is None else ProbeServer(health, answer_of(pulse), names=health_names)
    try:
        made = app if isinstance(app, App) else app()
        if server is not None:
            server.ask = answer_of(pulse, metrics_of(made))
        return asyncio.run(_work(made, grace_s, pulse, server, parent))
    finally:
        if server is not None:
            server.close()


async def _work(
    app: App, grace_s: float, pulse: Pulse, server: ProbeServer | None, parent: Parent | None
) -> int:
    def tell(look: Look) -> None:
        pulse.tell(look)
        if parent is not None:
            parent.tell(look, None if server is None else server.port)

    if parent is not None:
        parent.watch(app)
    pulse.tell(look(app))  # not yet to the parent: a config that is wrong is no work
    watchdog = Watchdog(pulse)
    beating = asyncio.create_task(beat(app, tell))
    watchdog.start()
    for name, handler in app.handlers.items():
        log.info("handling subscription=%s handler=%s", name, handler)
    code = EXIT_UNFINISHED
    try:
        left = await app.run(grace_s=grace_s)
        code = EXIT_STOPPED
    finally:
        watchdog.stop()
        beating.cancel()
        _leave_late(code)
    if left:
        say(unfinished(app.unanswered, grace_s))
        _leave(EXIT_UNFINISHED)
    return code


def unfinished(unanswered: Mapping[str, int], grace_s: float) -> str:
    """Return one line with the deliveries that could not be finished."""
    counts = ", ".join(f"{name} {count}" for name, count in unanswered.items() if count)
    return (
        f"stopped; not finished within {grace_s:g} s, to be delivered again: {counts or 'unknown'}"
    )


def _leave_late(code: int) -> None:
    """Exit after LEAVE_AFTER_S, if the process is still there by then.

    Python waits for ever for threads of the application. Those of `asyncio.to_thread` count too, even after
    their run was cancelled.
    """

    def leave() -> None:
        time.sleep(LEAVE_AFTER_S)
        main = threading.main_thread()
        left = [each.name for each in threading.enumerate() if not each.daemon and each is not main]
        say(f"stopped; left without waiting for threads: {', '.join(sorted(left)) or 'unknown'}")
        _leave(code)

    threading.Thread(target=leave, name="messagebus-leave", daemon=True).start()


def _leave(code: int) -> None:
    """Exit without waiting for threads: a handler that never returns would keep the process for ever.

    Exit functions run: they write the remaining spans and rows.
    """
    ending = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    ending.start()
    ending.join(ATEXIT_S)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def load(target: str) -> App:
    """Load the app of ``package.module:name``; ``:app`` may be left out.

    The working directory is searched first. Raises ConfigError: it does not import, there is no such
    name, or it is no `App`.
    """
    module_name, _, path = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"{target!r}: module:app wanted, as in shop.orders:app")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: object = _import(module_name)
    for name in (path or DEFAULT_NAME).split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{module_name} has no {path or DEFAULT_NAME!r}: {_apps(found)}")
        found = getattr(found, name)
    if not isinstance(found, App):
        raise ConfigError(f"{target} is {type(found).__name__}, not a messagebus.App")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as fault:
        if fault.name is not None and (name == fault.name or name.startswith(f"{fault.name}.")):
            told = f"no module {name!r} in {Path.cwd()} or sys.path"
            above, _, app = name.rpartition(".")
            hint = f"; for the app {app!r} of a module: {above}:{app}" if above else ""
            raise ConfigError(f"{told}{hint}") from None
        raise ConfigError(_import_fault(name, fault)) from fault
    except BaseException as fault:  # SystemExit too: a script without `if __name__ ...`
        raise ConfigError(_import_fault(name, fault)) from fault


def _import_fault(name: str, fault: BaseException) -> str:
    return f"{name} does not import: {Words().of(fault)} ({where(fault)})"


def where(fault: BaseException) -> str:
    """Return ``file:line`` of the application's innermost line on the way to the fault."""
    if isinstance(fault, SyntaxError) and fault.filename:
        return f"{fault.filename}:{fault.lineno}"
    frames = of_application(traceback.extract_tb(fault.__traceback__))
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "not in any file"


def _apps(module: object) -> str:
    """Return the names of the module's apps, for the error."""
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"its apps are {', '.join(sorted(names))}" if names else "there is no App in it"
