"""The agent as the client under test sees it: serves a consumer list of the kit's, hands on the rest.

It keeps what the client asked and when: `applied` is judged by it.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from messagebus.broker import WIRE_VERSION

WAIT_MAX_S = 30.0
AGENT_TIMEOUT_S = 30.0
TYPES = {"Content-Type": "text/plain; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Raw:
    """Answer of an agent that is not well. length: Content-Length, if another one than the body's."""

    body: bytes
    status: int = 200
    length: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Request for the list. at_s: monotonic time. applied, generation: -1 when it did not say.

    has_login: it has user and password, without which an agent does not count its client.
    """

    at_s: float
    client: str
    subscription: str
    applied: int
    generation: int
    has_login: bool


class ListServer:
    """One list server. agent: ``host:port`` of a real agent, which gets all other requests.

    on_asked: called with each request for the list, before it is answered.
    """

    def __init__(self, agent: str, cluster: str) -> None:
        self.agent, self.cluster = agent, cluster
        self.generation = 0
        self.requests: list[ListRequest] = []
        self.lies_served = 0
        self.on_request: Callable[[ListRequest], None] = lambda asked: None
        self._text = b""
        self._lie: Raw | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/consumer-list"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def serve(self, lines: list[str]) -> int:
        """Serve a list of these lines with the next generation, and return that."""
        with self._changed:
            self.generation += 1
            self._text = self.text(self.generation, lines)
            self._changed.notify_all()
            return self.generation

    def text(self, generation: int, lines: list[str]) -> bytes:
        """Return a good list."""
        head = [f"# cluster: {self.cluster}", f"# generation: {generation}"]
        return "\n".join([*head, *lines, ""]).encode()

    def lie(self, lie: Raw) -> None:
        """Give the next answer, or the one that is waited for, as this."""
        with self._changed:
            self._lie = lie
            self._changed.notify_all()

    def applied(self) -> int:
        """Return the highest generation that the client says it applied."""
        return max((each.applied for each in list(self.requests)), default=-1)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        ours = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                ours._get(self)

            def do_POST(self) -> None:
                ours._hand_on(self)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        if parts.path != "/consumer-list":
            self._hand_on(request)
            return
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        known = int(query.get("generation", "-1"))
        asked = ListRequest(
            time.monotonic(),
            query.get("client", ""),
            query.get("subscription", ""),
            int(query.get("applied", "-1")),
            known,
            request.headers.get("Authorization", "").startswith("Basic "),
        )
        self.requests.append(asked)
        self.on_request(asked)
        wait_s = min(float(query.get("wait_s", "0")), WAIT_MAX_S) if known >= 0 else 0.0
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._lie or self.generation != known, wait_s
            )
            lie, self._lie = self._lie, None
            same = self.generation == known
            good = Raw(
                self._text,
                headers={
                    "ETag": f'"{self.generation}"',
                    "MB-Generation": str(self.generation),
                    "MB-Cluster": self.cluster,
                    "MB-Wire": WIRE_VERSION,
                },
            )
        if lie is not None:
            _answer(request, lie)
            self.lies_served += 1
        else:
            _answer(request, Raw(b"", 304) if same else good)

    def _hand_on(self, request: BaseHTTPRequestHandler) -> None:
        """Ask the real agent the same, and answer as it does."""
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        names = ("Authorization", "Content-Type", "Accept")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        connection = http.client.HTTPConnection(self.agent, timeout=AGENT_TIMEOUT_S)
        try:
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            kind = answer.getheader("Content-Type", "")
            _answer(request, Raw(answer.read(), answer.status, headers={"Content-Type": kind}))
        except OSError as fault:
            _answer(request, Raw(str(fault).encode(), 503))
        finally:
            connection.close()


def _answer(request: BaseHTTPRequestHandler, raw: Raw) -> None:
    try:
        request.send_response(raw.status)
        for name, value in (TYPES | raw.headers).items():
            request.send_header(name, value)
        if raw.status != 304:
            length = len(raw.body) if raw.length is None else raw.length
            request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(raw.body)
        if raw.length is not None:
            request.close_connection = True
    except OSError:
        request.close_connection = True
