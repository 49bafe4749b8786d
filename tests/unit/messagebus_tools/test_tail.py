"""Lines of taps: whole, bounded, and fit for a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest

from messagebus_tools import tail


async def chunked(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_lines_are_whole_however_they_are_cut() -> None:
    whole = b'{"id":"1"}\n\n{"id":"2"}\n{"id":"3"}'
    for size in range(1, len(whole) + 1):
        cut = [whole[at : at + size] for at in range(0, len(whole), size)]
        lines = [line async for some in tail.whole_lines(chunked(cut)) for line in some]
        assert lines == [b'{"id":"1"}', b"", b'{"id":"2"}']


async def test_a_line_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LINE_BYTES_MAX", 100)
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 10

    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        async for _ in tail.whole_lines(endless()):
            pass
    assert taken == 11


@pytest.mark.parametrize("line", [b'{"id":"\xe2\x80\xae"}', b'{"id":\x1b[2J', b'{"id":\xff'])
def test_a_line_of_an_agent_that_lies_is_shown_without_what_does_not_print(
    line: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    printing = tail._Printing(None, None, None, None, None)
    assert printing.lines("mb1:5672", [line])
    out = capsysbinary.readouterr().out
    assert out.rstrip(b"\n").decode().isprintable()
