"""Search for the passwords in use in all output: log records, output, and logs of started parts.

    LEAKS.remember("sesame-1")    for a password made by hand; clusters' own are known
    LEAKS.look_into(folder)       a cluster's folder, before it is wiped
    LEAKS.told                    where one was seen: file and line, never the password

tests/conftest.py has it see every log record of the suite, and fails the run for each finding. A
secret is looked for as it is, quoted for an address, in hexadecimal, and in base64 wherever it stands
in the encoded text, as in the logins of HTTP and AMQP.
"""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

# Shorter words would be found by chance.
SECRET_CHARS_MIN = 8
TOLD_MAX = 50
LOGS = ("run/*.log", "nodes/*/log/*", "haproxy/*.log")
SECRETS = "secrets/*"


def spellings(secret: str) -> set[bytes]:
    """Return the forms in which it may stand in a text."""
    plain = secret.encode()
    return {plain, quote(secret, safe="").encode(), plain.hex().encode()} | {
        _inner_base64(plain, before) for before in range(3)
    }


def _inner_base64(plain: bytes, before: int) -> bytes:
    """Return the base64 characters that depend only on the secret, with this many bytes (of 3) before it."""
    text = base64.b64encode(b"\0" * before + plain)
    return text[-(-before * 8 // 6) : (before + len(plain)) * 8 // 6]


class Leaks(logging.Handler):
    """Collector of output; it compares at the end, because a secret may become known after it was shown."""

    def __init__(self) -> None:
        super().__init__(level=logging.NOTSET)
        self._secrets: set[str] = set()
        self._said: dict[str, set[str]] = {}
        self._files: dict[str, bytes] = {}
        self._also: list[str] = []

    def remember(self, secret: str) -> str:
        """Remember a password that is in use. Returns it."""
        assert len(secret) >= SECRET_CHARS_MIN, "too short to be looked for"
        self._secrets.add(secret)
        return secret

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "".join(traceback.format_exception(*record.exc_info))
        self.heard(f"{record.pathname}:{record.lineno}: a log record", text)

    def heard(self, place: str, text: str) -> None:
        """Take note of output and its place."""
        self._said.setdefault(place, set()).add(text)

    def also(self, told: Iterable[str]) -> None:
        """Tell these lines too: what a collector in another process has told."""
        self._also += told

    def look_into(self, folder: Path) -> int:
        """Read the secrets of a cluster and the output of its parts. Returns how many files that were."""
        for file in folder.glob(SECRETS):
            self.remember(file.read_text().strip())
        files = [file for pattern in LOGS for file in folder.glob(pattern) if file.is_file()]
        self._files |= {str(file): file.read_bytes() for file in files}
        return len(files)

    @property
    def told(self) -> list[str]:
        """``file:line: ... shows a secret`` for every place that shows one, TOLD_MAX at most."""
        words = {word for secret in self._secrets for word in spellings(secret)}
        found = self._also + [
            f"{place} shows a secret"
            for place, texts in self._said.items()
            if any(_shows(text.encode("utf-8", "replace"), words) for text in texts)
        ]
        for file, content in self._files.items():
            if _shows(content, words):  # seldom; only then line by line
                found += [
                    f"{file}:{number}: a part's log shows a secret"
                    for number, line in enumerate(content.split(b"\n"), start=1)
                    if _shows(line, words)
                ]
        return found[:TOLD_MAX]


def _shows(text: bytes, words: set[bytes]) -> bool:
    return any(word in text for word in words)


LEAKS = Leaks()
