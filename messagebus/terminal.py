"""Output of foreign text to a terminal: names, reasons and errors that others chose.

Printing characters are shown as they are. All others could move the cursor, change colours, or pass for
another line; they are shown by their escapes, as ``\\x1b``. Libraries that read a markup of their own get
such text as plain text.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["closest", "did_you_mean", "escaped", "plural", "printable", "say"]


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


def say(text: object, *, err: bool = False) -> None:
    """Print one line. err: to standard error."""
    import click  # an application that only logs needs no command line

    click.echo(printable(text), err=err)
