"""The relay that swallows open requests, with plain sockets."""

from __future__ import annotations

import socket
import threading

import pytest

from bench.figures.client.gaps import Relay

TIMEOUT_S = 10.0
SILENCE_S = 0.3


def echo(server: socket.socket) -> None:
    """Give every connection its own bytes back, until the server is closed."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        while block := connection.recv(1000):
            connection.sendall(block)


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def test_what_is_open_falls_silent_without_an_end_and_what_comes_later_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        host, port = server.getsockname()
        with Relay(host, port) as relay, dial(relay.address) as one:
            one.sendall(b"a")
            assert one.recv(1) == b"a"
            relay.swallow()
            with dial(relay.address) as two:
                two.sendall(b"b")
                assert two.recv(1) == b"b"
            one.sendall(b"c")
            one.settimeout(SILENCE_S)
            with pytest.raises(TimeoutError):
                one.recv(1)
            relay.heal()
            one.settimeout(TIMEOUT_S)
            assert one.recv(1) == b""


def test_a_target_that_is_away_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    with Relay(host, port) as relay, dial(relay.address) as one:
        assert one.recv(1) == b""
