"""Ground of the figures of the pipe tools (a receiver, the end of a tool, an archive) and of the page."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from bench.errors import BenchError, InputInvalid
from bench.figures.scene import Scene
from bench.figures.see.scale import _measured_s
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


def test_minutes_of_the_environment_are_a_number_with_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(Path(), print)
    assert _measured_s(scene) == 120
    monkeypatch.setenv("MINUTES", "60")
    assert _measured_s(scene) == 3_600
    for text in ("", "an hour", "nan", "0", "-1", "601"):
        monkeypatch.setenv("MINUTES", text)
        with pytest.raises(
            InputInvalid, match=r"MINUTES: .* is not a number above 0 and up to 600"
        ):
            _measured_s(scene)
