"""Output to a terminal: text that others chose, such as names and errors, and lines of progress.

Printing characters are shown as they are. All others could move the cursor, change colours, or pass for
another line; they are shown by their escapes, as ``\\x1b``. Libraries that read a markup of their own get
such text as plain text.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Self

__all__ = [
    "Progress",
    "StatusLine",
    "closest",
    "columns",
    "did_you_mean",
    "duration",
    "escaped",
    "folded",
    "pace",
    "plural",
    "printable",
    "say",
    "shortened",
]

# Work that ends sooner prints nothing about its progress.
QUIET_S = 5.0
# Between two pictures of progress on a terminal, and between two lines where there is none.
SHOWN_EVERY_S, PRINTED_EVERY_S = 0.2, 10.0
# Rates are taken over this time: steady, and a change shows soon.
RATE_OVER_S = 10.0
# To the beginning of the line, and erase it.
ERASE = "\r\x1b[K"


def printable(text: object) -> str:
    """Return the text as one line of printing characters. A text that this returned stays unchanged."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def escaped(text: str, chars_max: int) -> str:
    """Return at most chars_max characters of the text in the same form, with its own backslashes doubled."""
    shown = printable(text[:chars_max].replace("\\", "\\\\"))
    return f"{shown}..." if len(text) > chars_max else shown


def plural(count: int, what: str) -> str:
    """Return a number with its noun: 1 broker, 2 brokers, 1,000 deliveries, 3 publishes."""
    if count == 1:
        return f"1 {what}"
    if what.endswith(("sh", "ss")):
        return f"{count:,} {what}es"
    return f"{count:,} {what[:-1]}ies" if what.endswith("ry") else f"{count:,} {what}s"


def duration(seconds: float) -> str:
    """Return a span of time in words, with its two largest units: ``4 min 12 s``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for large, large_s, small, small_s in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60)):
        if whole >= large_s:
            return f"{whole // large_s} {large} {whole % large_s // small_s} {small}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that may have been meant, or "" where none is like it."""
    import difflib  # only needed for a mistyped word

    return next(iter(difflib.get_close_matches(word, sorted(known), n=1)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a complaint about an unknown word, "; did you mean 'x'?", or ""."""
    return f"; did you mean {meant!r}?" if (meant := closest(word, known)) else ""


def columns() -> int | None:
    """Return the width of the terminal at standard output; None if standard output is no terminal."""
    return _columns() if sys.stdout.isatty() else None


def _columns() -> int:
    import shutil  # and with it every kind of compression

    return shutil.get_terminal_size().columns


def folded(text: str, width: int | None) -> list[str]:
    """Return the lines of a sentence that fit into this width, all but the first indented; None: one line."""
    import textwrap

    shown = printable(text)
    if width is None or len(shown) <= width:
        return [shown]
    return textwrap.wrap(shown, width, subsequent_indent="  ", break_on_hyphens=False)


def shortened(text: str, chars_max: int) -> str:
    """Return a name of at most chars_max characters; of a longer name both ends, without its middle."""
    if len(text) <= chars_max:
        return text
    end = (chars_max - 1) // 2
    return f"{text[: chars_max - 1 - end]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - end :]}"


def say(text: object, *, err: bool = False) -> None:
    """Print one line. err: to standard error."""
    import click  # an application that only logs needs no command line

    click.echo(printable(text), err=err)


class StatusLine:
    """One line on standard error about work in progress.

    On a terminal each text replaces the one before, cut to the terminal's width. Elsewhere, as in a log or a
    pipe, a text is printed every PRINTED_EVERY_S. after_s: nothing is shown before. Not thread-safe.
    """

    def __init__(
        self, *, after_s: float = QUIET_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._is_replaced = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._due_s = clock() + (after_s if self._is_replaced else max(after_s, QUIET_S))
        self._is_shown = False

    @property
    def is_due(self) -> bool:
        """True when a text would be shown now."""
        return self._clock() >= self._due_s

    def show(self, text: str) -> None:
        """Show a text, if one is due."""
        if not self.is_due:
            return
        if not self._is_replaced:
            self._due_s = self._clock() + PRINTED_EVERY_S
            say(text, err=True)
            return
        self._print(ERASE + _cut(printable(text), _columns() - 1))
        self._is_shown = True

    def clear(self) -> None:
        """Erase the text: before another line is printed, and at the end."""
        if self._is_shown:
            self._print(ERASE)
            self._is_shown = False

    def _print(self, text: str) -> None:
        import click

        click.echo(text, nl=False, err=True)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: max(0, chars_max - 3)]}..."


class Progress:
    """Progress of work on one line: how much is done, the rate, the time left.

        with Progress("redriven", total=50_000) as progress:
            progress.at(12_000)             # redriven 12,000 of 50,000 messages, 1,204/s, 32 s left

    verb, noun: words of the line. total: number of things to do; it may change; None if it is not known.
    done: the number of the last `at`.
    A `StatusLine`: nothing is shown in the first seconds. Not thread-safe.
    """

    def __init__(
        self,
        verb: str,
        noun: str = "message",
        total: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verb, self._noun, self.total = verb, noun, total
        self._clock, self._line = clock, StatusLine(clock=clock)
        self._sampled_s = clock()
        # When, how much was done by then, and which share of all.
        self._samples: deque[tuple[float, int, float]] = deque([(self._sampled_s, 0, 0.0)])
        self.done = 0

    def at(self, done: int, about: str = "", *, share: float | None = None) -> None:
        """Note how much is done. Cost: 0.2 us unless a text is due.

        about: the place where the work is now. share: part of all work that is done, if another measure than
        `done` gives it; below 0 counts as 0, above 1 as 1.
        """
        self.done, now_s = done, self._clock()
        if now_s - self._sampled_s < SHOWN_EVERY_S:
            return
        self._sampled_s = now_s
        if share is None and self.total:
            share = done / self.total
        if share is not None:
            share = min(1.0, max(0.0, share))
        self._samples.append((now_s, done, share or 0.0))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= RATE_OVER_S:
            self._samples.popleft()
        if self._line.is_due:
            self._line.show(self._text(share) + (f": {about}" if about else ""))

    def _text(self, share: float | None) -> str:
        (then_s, before, share_before), (now_s, _, _) = self._samples[0], self._samples[-1]
        took_s = now_s - then_s
        rate = (self.done - before) / took_s
        if share is None:
            return f"{self._verb} {plural(self.done, self._noun)}{pace(rate)}"
        risen = share - share_before
        left_s = (1 - share) * took_s / risen if risen > 0 else None
        if self.total is None:
            done = f"{plural(self.done, self._noun)}, {share:.0%}"
        else:
            done = f"{self.done:,} of {plural(self.total, self._noun)}"
        return f"{self._verb} {done}{pace(rate, left_s)}"

    def end(self) -> None:
        """Erase the line."""
        self._line.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def pace(rate_per_s: float, left_s: float | None = None) -> str:
    """Return the end of a line of progress: ", 1,204/s, 32 s left". left_s: None where it is not known."""
    if rate_per_s >= 10:
        rate = f"{rate_per_s:,.0f}/s"
    elif rate_per_s >= 1 or not rate_per_s:
        rate = f"{rate_per_s:.1f}/s"
    else:
        rate = f"{rate_per_s * 60:.1f}/min"
    return f", {rate}" + ("" if left_s is None else f", {duration(left_s)} left")
