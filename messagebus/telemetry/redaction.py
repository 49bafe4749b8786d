"""Redaction of texts that others wrote: short, on one line, without texts that look like passwords.

An exception's text may be 10 MB long and may quote an address with its password. Passwords cannot be
recognised for certain: hidden are texts behind a name like ``password=`` or ``token:``, or
in an address before its ``@``.
"""

from __future__ import annotations

import re
import traceback

__all__ = ["plain_error", "plain_text", "plain_trace"]

TEXT_CHARS_MAX = 1024
TRACE_CHARS_MAX = 8 * 1024
FRAMES_MAX = 30
# Times the shown length that is read of a text, so that no password is cut before it can be
# recognised.
READ_FACTOR = 4
HIDDEN = "***"

_IN_ADDRESS = re.compile(r"(://[^\s:/@]{0,255}):[^\s/]{0,1024}@")
_BEHIND_NAME = re.compile(
    r"""(?ix) ( \b [\w-]{0,32} (?: passw(?:or)?d | passphrase | pwd | secret | token | api[_-]?key
        | authori[sz]ation | credentials? ) [\w-]{0,32} ["']? \s? (?: = | : | => ) \s{0,3} )
    ( "[^"]{0,1024}"? | '[^']{0,1024}'? | (?: basic | bearer ) \s+ \S{1,2048} | [^\s,;&)}\]]{1,1024} )"""
)


def plain_text(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return at most chars_max characters of it, passwords hidden. Cost: none for the rest."""
    read = text[: READ_FACTOR * chars_max]
    read = _BEHIND_NAME.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(rf"\1:{HIDDEN}@", read))
    if len(read) > chars_max or len(text) > READ_FACTOR * chars_max:
        return f"{read[: chars_max - 3]}..."
    return read


def plain_error(error: BaseException) -> str:
    """Return an exception's text; "" when it has none."""
    try:
        return plain_text(str(error))
    except Exception as fault:  # an application's own __str__
        return f"(its text fails: {type(fault).__name__})"


def plain_trace(error: BaseException) -> str:
    """Return the traceback, outermost first: its last FRAMES_MAX frames and the first exception's text."""
    try:
        frames = traceback.format_tb(error.__traceback__, limit=-FRAMES_MAX)
    except Exception:  # its source file is gone or no text
        return ""
    return plain_text("".join(frames).rstrip(), TRACE_CHARS_MAX)
