"""A small HTTP server, in a thread of its own, that answers while the app's loop cannot.

| path | 200 | 503 |
|---|---|---|
| /ready | attached to brokers, and not stopping | else |
| /live | the loop turns | it has not for LIVE_S |
| /metrics | Prometheus text, where prometheus-client is installed | (404 without it) |
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, socket
from typing import Any, NamedTuple

from messagebus.errors import ConfigError
from messagebus.worker.metrics import Metrics
from messagebus.worker.pulse import LIVE_S, Look, Pulse

__all__ = ["Answer", "HealthServer", "answer_of", "parse_address"]

REQUEST_TIMEOUT_S = 5.0
# Probes come one by one; the rest is hung up on.
REQUESTS_MAX = 16
JSON, TEXT = "application/json", "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """code: of HTTP."""

    code: int
    content_type: str
    body: bytes


Ask = Callable[[str], Answer]
"""From a path to its answer; called on the server's threads."""


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` for all addresses, ``[::1]:PORT``. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise ConfigError(f"health {text!r}: HOST:PORT wanted")
    return host.removeprefix("[").removesuffix("]"), int(port)


def answer_of(pulse: Pulse, metrics: Metrics | None = None) -> Ask:
    """What one worker answers."""

    def ask(path: str) -> Answer:
        if path == "/metrics" and metrics is not None:
            return Answer(200, *metrics())
        age_s, look = pulse.age_s, pulse.look
        return respond(path, look, None if age_s < LIVE_S else f"no turn for {age_s:.1f} s")

    return ask


def respond(path: str, look: Look, stuck: str | None) -> Answer:
    """stuck: why it is not live; None: it is."""
    match path:
        case "/ready":
            ready = bool(look["ready"]) and stuck is None
            return _as_json(200 if ready else 503, {**look, "ready": ready})
        case "/live":
            return _as_json(200 if stuck is None else 503, {"live": stuck is None, "why": stuck})
        case _:
            return Answer(404, TEXT, b"/ready, /live, /metrics\n")


def _as_json(code: int, value: Any) -> Answer:
    return Answer(code, JSON, json.dumps(value, default=str).encode() + b"\n")


class HealthServer(ThreadingHTTPServer):
    """Listens from the start of its life to `close`. Raises ConfigError when it cannot."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], ask: Ask) -> None:
        self.ask = ask
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self._free = threading.BoundedSemaphore(REQUESTS_MAX)
        try:
            super().__init__(address, _Request)
        except OSError as fault:
            told = f"{address[0]}:{address[1]}"
            raise ConfigError(f"health {told}: cannot listen: {fault.strerror}") from fault
        threading.Thread(target=self.serve_forever, name="messagebus-health", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A probe that hangs up is no event."""


class _Request(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: HealthServer

    def do_GET(self) -> None:
        code, content_type, body = self.server.ask(self.path.partition("?")[0])
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a probe a second would fill any log."""
