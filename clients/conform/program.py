"""The client under test: a process that reads orders and tells events, one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

READY_WITHIN_S = 20.0
END_WITHIN_S = 15.0
LINE_SHOWN = 200

Event = dict[str, Any]


class Wrong(Exception):
    """Raised when the client under test does not do as docs/WIRE.md says."""


def must(condition: object, fault: str) -> None:
    """Raise Wrong with this text unless the condition holds."""
    if not condition:
        raise Wrong(fault)


class Program:
    """One run of the client under test. patience: factor on all times.

    events: all it told, in order. auto: answer to each delivery, "" for none.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], log: Path, patience: float
    ) -> None:
        self.patience = patience
        self.events: list[Event] = []
        self.auto = ""
        self.ordered: set[str] = set()
        self._news = threading.Condition()
        self._log = log.open("ab")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MESSAGEBUS_")}
        self.process = subprocess.Popen(
            command,
            env=clean | dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(END_WITHIN_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._log.close()

    # Orders.
    def do(self, order: str, **more: Any) -> None:
        """Send an order."""
        line = json.dumps({"do": order, **more}).encode() + b"\n"
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except OSError as fault:
            raise Wrong(f"ended before it was told to: code {self.process.poll()}") from fault

    def register(self, *wanted: str) -> Event:
        """Have it register these, and return its answer."""
        count = len(self.events_of("registered"))
        self.do("register", wanted=list(wanted))
        self.until(lambda: len(self.events_of("registered")) > count, 10, "an answer to register")
        return self.events_of("registered")[-1]

    def publish(
        self,
        to: str,
        ids: Sequence[str],
        *,
        key: str = "",
        size: int = 0,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Order publishes; `outcomes` tells how they ended."""
        self.ordered |= set(ids)
        self.do("publish", to=to, ids=list(ids), key=key, bytes=size, headers=dict(headers or {}))

    def consume(self, source: str, *, prefetch: int = 50, auto: str = "ack") -> None:
        """Have it consume. auto: "ack" or "" (the case answers itself)."""
        self.auto = auto
        self.do("consume", **{"from": source, "prefetch": prefetch})

    def ack(self, *deliveries: Event) -> None:
        for each in deliveries:
            self.do("ack", tag=each["tag"])

    # What it told.
    def events_of(self, key: str) -> list[Event]:
        """Return the events with this key."""
        with self._news:
            return [each for each in self.events if key in each]

    @property
    def deliveries(self) -> list[Event]:
        return self.events_of("delivered")

    @property
    def ids(self) -> list[str]:
        """The ids of all deliveries, in order."""
        return [each["delivered"] for each in self.deliveries]

    def outcomes(self) -> dict[str, list[str]]:
        """Return id -> outcomes told of it, in order."""
        found: dict[str, list[str]] = {}
        for each in self.events_of("outcome"):
            found.setdefault(each["id"], []).append(each["outcome"])
        return found

    def answered(self, delivery: Event) -> Event | None:
        """Return what it told of the answer to a delivery, None for nothing yet."""
        told = [each for each in self.events_of("answered") if each["answered"] == delivery["tag"]]
        return told[-1] if told else None

    # Waiting.
    def until(self, condition: Callable[[], object], within_s: float, what: str) -> float:
        """Wait for a condition, return the seconds that it took. Raises Wrong."""
        began_s = time.monotonic()
        until_s = began_s + within_s * self.patience
        while not condition():
            if time.monotonic() > until_s:
                raise Wrong(f"{what}: not within {within_s:g} s{self._ended()}")
            with self._news:
                self._news.wait(0.02)
        return time.monotonic() - began_s

    def never(self, condition: Callable[[], object], for_s: float, what: str) -> None:
        """Watch that a condition stays false. Raises Wrong."""
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            must(not condition(), what)
            with self._news:
                self._news.wait(0.02)

    def settled(self, ids: Sequence[str], within_s: float = 15) -> dict[str, str]:
        """Wait until each of these has its outcome; return the last of each."""
        self.until(
            lambda: set(ids) <= self.outcomes().keys(), within_s, "an outcome of each publish"
        )
        return {each: self.outcomes()[each][-1] for each in ids}

    def received(self, ids: Sequence[str], within_s: float = 10) -> float:
        """Wait until these were delivered; return the seconds."""
        wanted = set(ids)
        return self.until(lambda: wanted <= set(self.ids), within_s, f"delivery of {_few(ids)}")

    def ready(self) -> None:
        """Wait until it reads orders."""
        self.until(lambda: self.events_of("ready"), READY_WITHIN_S, '{"ready": true}')

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def end(self, within_s: float = END_WITHIN_S) -> int:
        """Wait for its end and return the exit code."""
        try:
            return self.process.wait(within_s * self.patience)
        except subprocess.TimeoutExpired:
            raise Wrong(f"still runs {within_s:g} s after it was told to stop") from None

    def stop(self) -> int:
        """Have it stop, and return its exit code."""
        self.do("stop")
        return self.end()

    def _ended(self) -> str:
        code = self.process.poll()
        return "" if code is None else f" (the client had ended with code {code})"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
                assert isinstance(event, dict)
            except (ValueError, AssertionError):
                event = {"garbage": line[:LINE_SHOWN].decode("utf-8", "replace")}
            with self._news:
                self.events.append(event)
                self._news.notify_all()
            if self.auto == "ack" and "delivered" in event:
                with contextlib.suppress(Wrong):
                    self.ack(event)


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
