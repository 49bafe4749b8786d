"""Until when a certificate is good, read from its PEM file.

Python's ssl tells it of authorities, and of the other end of a connection that it trusts; never of our own
certificate. So the few bytes of X.509 that lead there are read here (RFC 5280, section 4.1).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

__all__ = ["good_until_s"]

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _LONG_FORM = 0xA0, 0x17, 0x80


def good_until_s(pem: str) -> float:
    """The end of the first certificate in a PEM text, in seconds since 1970.

    Raises ValueError for a text without one, or with one that cannot be read.
    """
    found = _CERTIFICATE.search(pem)
    if not found:
        raise ValueError("no PEM certificate in it")
    try:
        (certificate,) = _parts(ssl.PEM_cert_to_DER_cert(found[0]))
        signed, *_ = _parts(certificate[1])
        fields = [part for part in _parts(signed[1]) if part[0] != _VERSION]
        _serial, _algorithm, _issuer, validity, *_ = fields
        _begin, (kind, end) = _parts(validity[1])
        return _time(kind, end.decode("ascii")).timestamp()
    except (ValueError, IndexError) as fault:
        raise ValueError("a certificate that cannot be read") from fault


def _parts(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element, in DER."""
    at = 0
    while at < len(encoded):
        tag, size = encoded[at], encoded[at + 1]
        at += 2
        if size & _LONG_FORM:
            more = size & ~_LONG_FORM
            size = int.from_bytes(encoded[at : at + more])
            at += more
        yield tag, encoded[at : at + size]
        at += size


def _time(kind: int, text: str) -> datetime:
    """``YYMMDDHHMMSSZ`` is of 1950 to 2049; later years have four digits."""
    if kind == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
