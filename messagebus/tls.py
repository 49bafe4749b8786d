"""Certificates of our own and of trusted authorities, as files that are read again when they change.

For clients, agents and the operators' kits. Both ends verify each other: a client checks the
server's name, a server the authority of the client's certificate. At least TLS 1.2.

The end of a certificate is read here from its PEM file (RFC 5280, section 4.1). Python's ssl tells it for
authorities, and for the other end of a connection that it trusts; never for our own certificate.
"""

from __future__ import annotations

import functools
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from messagebus.checks import raise_faults
from messagebus.errors import ConfigError

__all__ = ["TlsFiles", "certificate_fault", "trusting_nobody", "good_until_s"]

# Sets of files whose contexts are kept; making one from the system's authorities takes some 20 ms, which
# is too long for a dial.
CONTEXTS_KEPT = 16
# An error that is its own cause, some layers deep, ends here.
LAYERS_MAX = 50
# The alerts of a server that asks for a certificate and gets none, or none that it trusts.
_REFUSED = re.compile(
    r"\[SSL: \w*ALERT_(\w*(?:CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED)\w*)\]"
)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _LONG_FORM = 0xA0, 0x17, 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. ca_file: authorities that are trusted, "" for the system's.

    cert_file: our certificate, with those that lead to the authority; "" for none. key_file: its key,
    not encrypted; "" when it stands in cert_file too.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def client_context(self) -> ssl.SSLContext:
        """Return a context that verifies a server and its name, and shows our certificate.

        Raises ConfigError with every fault of the files. The same object as long as the files stay
        as they are, so that new ones count from the next dial.
        """
        return _context(self, None, self._stamps())

    def server_context(self, clients: ssl.VerifyMode = ssl.CERT_REQUIRED) -> ssl.SSLContext:
        """Return a context that shows our certificate. Raises ConfigError.

        clients: whether a client must show one of ca_file's, may, or is not asked. The same object as long as
        the files stay as they are.
        """
        return _context(self, clients, self._stamps())

    def refresh(self, *used: ssl.SSLContext) -> None:
        """Have contexts that are in use show and trust the files' current contents, from the next handshake.

        Raises ConfigError, with nothing changed, when the files are not good.
        """
        self.client_context()
        for context in used:
            faults = _show(context, self.cert_file, self.key_file) if self.cert_file else []
            faults += _trust(context, self.ca_file) if self.ca_file else []
            raise_faults(faults)

    def faults(self) -> list[str]:
        """Return the faults of the files, one sentence each; empty when all is well."""
        try:
            self.client_context()
        except ConfigError as fault:
            return [str(fault)]
        return []

    def good_until_s(self) -> float | None:
        """Return when our certificate ends, or the last of the authorities in ca_file if that is earlier.

        Seconds since 1970. None where neither is given, or a file cannot be read: `faults` says why.
        """
        ends = []
        try:
            if self.cert_file:
                ends.append(good_until_s(Path(self.cert_file).read_text()))
            if self.ca_file:
                authorities = ssl.create_default_context(cafile=self.ca_file).get_ca_certs()
                ends.append(max(map(_end_s, authorities)))
        except (OSError, ValueError):
            return None
        return min(ends, default=None)

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        """Return stamps that change when a file does. Raises ConfigError for a file that cannot be read."""
        named = {"ca": self.ca_file, "cert": self.cert_file, "key": self.key_file}
        stamps, faults = [], []
        for name, file in named.items():
            if file:
                try:
                    with Path(file).open("rb") as opened:
                        opened.read(1)
                    stat = Path(file).stat()
                    stamps.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
                except (OSError, ValueError) as fault:
                    reason = getattr(fault, "strerror", None) or fault
                    faults.append(f"tls_{name}_file {file}: {reason}")
        if self.key_file and not self.cert_file:
            faults.append("tls_key_file: without a tls_cert_file")
        raise_faults(faults)
        return tuple(stamps)


@functools.lru_cache(maxsize=CONTEXTS_KEPT)
def _context(files: TlsFiles, clients: ssl.VerifyMode | None, _stamps: object) -> ssl.SSLContext:
    """Make the context of a server, which asks its clients so, or None: that of a client."""
    serves = clients is not None
    purpose = ssl.Purpose.CLIENT_AUTH if serves else ssl.Purpose.SERVER_AUTH
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    faults = []
    if files.ca_file:
        faults += _trust(context, files.ca_file)
    elif clients is not ssl.CERT_NONE:
        context.load_default_certs(purpose)
    if clients is not None:
        context.verify_mode = clients
    if files.cert_file:
        faults += _show(context, files.cert_file, files.key_file)
    elif serves:
        faults.append("tls_cert_file: must be given")
    raise_faults(faults)
    return context


def _trust(context: ssl.SSLContext, ca_file: str) -> list[str]:
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ValueError):
        return [f"tls_ca_file {ca_file}: no PEM certificate in it"]
    # While authorities change, old and new stand side by side: one that is good will do.
    last = max(context.get_ca_certs(), key=_end_s, default=None)
    if last and _end_s(last) < time.time():
        return [f"tls_ca_file {ca_file}: expired on {last['notAfter']}"]
    return []


def _end_s(certificate: Mapping[str, Any]) -> int:
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


def _show(context: ssl.SSLContext, cert_file: str, key_file: str) -> list[str]:
    try:
        # With a password at hand OpenSSL does not ask for one on the terminal.
        context.load_cert_chain(cert_file, key_file or None, password="")
    except ssl.SSLError as fault:
        if fault.reason == "KEY_VALUES_MISMATCH":
            return [f"tls_key_file {key_file or cert_file}: not the key of {cert_file}"]
        return [
            f"tls_cert_file {cert_file}, tls_key_file {key_file or cert_file}:"
            " a PEM certificate and its key, not encrypted, wanted"
        ]
    except (OSError, ValueError) as fault:
        return [f"tls_cert_file {cert_file}: {fault}"]
    return []


@functools.cache
def trusting_nobody() -> ssl.SSLContext:
    """Return a context for clients of http alone: a list of all the world's authorities takes 1 to 3 MB."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def certificate_fault(fault: BaseException) -> str:
    """Return why one end did not trust the other's certificate; "" when an error is about something else."""
    for each in _layers(fault):
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"its certificate is not good: {each.verify_message}"
        if refused := _REFUSED.search(str(each)):  # pika keeps the text alone
            said = refused[1].replace("_", " ").lower()
            return f"it does not take our certificate: {said}"
    return ""


def _layers(fault: BaseException) -> Iterator[BaseException]:
    """Yield an error and all errors in it: libraries wrap them in causes, arguments and attributes."""
    waiting, seen = [fault], 0
    while waiting and seen < LAYERS_MAX:
        each = waiting.pop()
        seen += 1
        yield each
        inner = [*each.args, *getattr(each, "exceptions", ()), getattr(each, "exception", None)]
        inner += [each.__cause__, each.__context__]
        waiting += [layer for layer in inner if isinstance(layer, BaseException)]


def good_until_s(pem: str) -> float:
    """Return the end of the first certificate in a PEM text, in seconds since 1970.

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
    """Yield tag and content of each element, in DER."""
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
    """Parse a time of DER. ``YYMMDDHHMMSSZ`` is of 1950 to 2049; later years have four digits."""
    if kind == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
