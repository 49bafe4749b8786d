"""Ground of the figures of the pipe tools: a receiver of posts, the end of a tool, an archive."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.figures.see.tools import _archived, _Taker, _taker, _Tool


def test_the_receiver_answers_every_request_and_notes_when_it_came() -> None:
    _Taker.times = []
    request = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
    with _taker() as port, socket.create_connection(("127.0.0.1", port), 60) as link:
        link.sendall(request + request[:20])
        link.sendall(request[20:])
        answered = b""
        while answered.count(b"204") < 2:
            answered += link.recv(100)
    assert len(_Taker.times) == 2


def test_a_tool_that_fails_is_told_and_one_that_was_ended_is_not(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="ends with 2"):
        _Tool(dict(os.environ), "no-such-command", log=tmp_path / "log").ended()
    took_s, cpu_s = _Tool(dict(os.environ), "--version", log=tmp_path / "log").ended()
    assert took_s > 0
    assert cpu_s > 0


def test_an_archive_without_files_has_nothing(tmp_path: Path) -> None:
    assert _archived(tmp_path) == set()
