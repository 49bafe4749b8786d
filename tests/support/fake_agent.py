"""Nodes as a balancer and operators see them, without RabbitMQ: gate check, agent-check, agent's HTTP.

For tests of HAProxy and of the kits; the answers of a real broker and a real agent are compared
elsewhere (tests/integration/test_balancer.py).
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pika.frame
import pika.spec

from messagebus.admin.proof import ASK, PROOF, Challenges, answer_proof
from messagebus.secret import Secret
from messagebus.topology import GATE

CLIENT = b"a client, not a check\n"
"""First bytes of a client of a FakeBroker; they are sent back, as long as the connection lives."""

START = pika.frame.Method(
    0,
    pika.spec.Connection.Start(server_properties={}, mechanisms=b"PLAIN", locales=b"en_US"),
).marshal()
TUNE = pika.frame.Method(0, pika.spec.Connection.Tune(2047, 131_072, 60)).marshal()
OPENED = (
    pika.frame.Method(0, pika.spec.Connection.OpenOk()).marshal()
    + pika.frame.Method(1, pika.spec.Channel.OpenOk()).marshal()
)
GATE_OPEN = pika.frame.Method(1, pika.spec.Queue.DeclareOk(GATE, 1, 0)).marshal()
GATE_SHUT = pika.frame.Method(1, pika.spec.Queue.DeclareOk(GATE, 0, 0)).marshal()
CLOSED = pika.frame.Method(0, pika.spec.Connection.CloseOk()).marshal()


class _Quiet:
    """Ignore a peer that hangs up in the middle."""

    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, _request: object, _address: object) -> None: ...


class FakeBroker(_Quiet, socketserver.ThreadingTCPServer):
    """Broker that answers gate checks as RabbitMQ does, and echoes what clients send.

    gate: whether it is open. frozen: takes connections and says nothing.
    clients: connections that were no check. checks: gate checks answered to the end.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _BrokerConnection)
        self.gate = True
        self.frozen = False
        self.clients = 0
        self.checks = 0

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _BrokerConnection(socketserver.BaseRequestHandler):
    server: FakeBroker

    def handle(self) -> None:
        try:
            first = self.request.recv(4096)
            if self.server.frozen:
                self.request.recv(4096)
            elif first.startswith(b"AMQP"):
                self._answer_check()
            elif first:
                self.server.clients += 1
                self._echo(first)
        except OSError:
            return

    def _echo(self, received: bytes) -> None:
        while received:
            self.request.sendall(received)
            received = self.request.recv(4096)

    def _answer_check(self) -> None:
        for answer in (
            START,
            TUNE,
            OPENED + (GATE_OPEN if self.server.gate else GATE_SHUT),
            CLOSED,
        ):
            self.request.sendall(answer)
            if not self.request.recv(4096):
                return
            self.server.checks += answer == CLOSED


class _CheckLine(socketserver.BaseRequestHandler):
    server: _CheckServer

    def handle(self) -> None:
        agent = self.server.agent
        if not agent.mute:
            self.request.sendall(b"drain\n" if agent.draining else b"ready\n")


class _HttpServer(_Quiet, ThreadingHTTPServer):
    agent: FakeAgent


class _CheckServer(_Quiet, socketserver.ThreadingTCPServer):
    agent: FakeAgent


class FakeAgent:
    """HTTP and agent-check line of an agent.

    text: the consumer list that it serves, "" for none. clients: the answer to GET /clients.
    mute: accepts agent-checks and says nothing. requests: methods and paths seen, in order.
    dies_in: paths whose requests end without an answer.
    """

    def __init__(self, host: str) -> None:
        self.text = ""
        self.clients: list[dict[str, Any]] = []
        self.draining = False
        self.mute = False
        self.token = "sesame"
        self.challenges = Challenges(lambda: Secret(self.token))
        self.requests: list[str] = []
        self.dies_in: set[str] = set()
        self.http = _HttpServer((host, 0), _AgentRequest)
        self.http.agent = self
        self.check = _CheckServer((host, 0), _CheckLine)
        self.check.agent = self

    @property
    def address(self) -> str:
        host, port = self.http.server_address[:2]
        return f"{host!s}:{port}"

    @property
    def check_address(self) -> str:
        host, port = self.check.server_address[:2]
        return f"{host!s}:{port}"


class _AgentRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def do_GET(self) -> None:
        agent = self._seen()
        path = self.path.partition("?")[0]
        if path in agent.dies_in:
            self.close_connection = True
            return
        if path == "/clients":
            self._answer(200, json.dumps({"clients": agent.clients}))
        elif path == "/consumer-list":
            time.sleep(float(self.path.partition("wait_s=")[2] or 0))
            self._answer(200 if agent.text else 503, agent.text or "no list\n")
        else:
            self._answer(200 if path == "/live" else 404, "")

    def do_POST(self) -> None:
        agent = self._seen()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path in agent.dies_in:
            self.close_connection = True
            return
        # For any agent that is asked for: it has no name.
        header = self.headers["Authorization"] or ""
        me = header.partition('to="')[2].partition('"')[0]
        if agent.challenges.proves(header, me=me, method="POST", target=self.path, body=body):
            agent.draining = json.loads(body)["draining"]
            proof = answer_proof(
                Secret(agent.token),
                ask=self.headers[ASK],
                method="POST",
                target=self.path,
                broker=me,
                status=200,
                etag="",
                body=b"{}",
            )
            self._answer(200, "{}", **{PROOF: proof})
        else:
            self._answer(401, "who are you?", **{"WWW-Authenticate": agent.challenges.header})

    def _seen(self) -> FakeAgent:
        agent = self.server.agent
        agent.requests.append(f"{self.command} {self.path}")
        return agent

    def _answer(self, code: int, text: str, **headers: str) -> None:
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@contextmanager
def fake_broker(host: str = "127.0.0.1", port: int = 0) -> Iterator[FakeBroker]:
    with FakeBroker((host, port)) as broker, _serving(broker):
        yield broker


@contextmanager
def fake_agent(host: str = "127.0.0.1") -> Iterator[FakeAgent]:
    agent = FakeAgent(host)
    with agent.http, agent.check, _serving(agent.http), _serving(agent.check):
        yield agent


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
