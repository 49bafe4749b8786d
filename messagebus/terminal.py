"""Text from elsewhere on a terminal: names, reasons and errors that others chose.

What prints is shown as it is. All else could move the cursor, change colours, or pass for another line, and
is shown by its escape, as ``\\x1b``. Libraries that read a markup of their own get such text as plain text.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["closest", "did_you_mean", "escaped", "plural", "printable", "say"]


def printable(text: object) -> str:
    """One line of characters that print. Of what this returned it changes nothing."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def escaped(text: str, chars_max: int) -> str:
    """The same of at most so many characters, and so that what was a backslash can be told."""
    shown = printable(text[:chars_max].replace("\\", "\\\\"))
    return f"{shown}..." if len(text) > chars_max else shown


def plural(count: int, what: str) -> str:
    """Return a number of what is counted: 1 broker, 2 brokers, 1,000 deliveries, 3 publishes."""
    if count == 1:
        return f"1 {what}"
    if what.endswith(("sh", "ss")):
        return f"{count:,} {what}es"
    return f"{count:,} {what[:-1]}ies" if what.endswith("ry") else f"{count:,} {what}s"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that may have been meant, or "" where none is like it."""
    import difflib  # only for who mistyped something

    return next(iter(difflib.get_close_matches(word, sorted(known), n=1)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a complaint about an unknown word, "; did you mean 'x'?", or ""."""
    return f"; did you mean {meant!r}?" if (meant := closest(word, known)) else ""


def say(text: object, *, err: bool = False) -> None:
    """Print one line. err: to standard error."""
    import click  # whoever logs needs no command line

    click.echo(printable(text), err=err)
