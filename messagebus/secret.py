"""A text that is never shown."""

from __future__ import annotations

import hmac
from urllib.parse import SplitResult, unquote, urlsplit

from messagebus.errors import ConfigError

__all__ = ["Secret", "split_address"]


class Secret:
    """Password or token. ``reveal()`` is the only way to its text; repr, str and format hide it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the call that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        ours, theirs = (each._text.encode("utf-8", "surrogatepass") for each in (self, other))
        return hmac.compare_digest(ours, theirs)

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled")


def split_address(address: str) -> SplitResult:
    """Split an address that may hold a password. Raises ConfigError, which shows nothing but its scheme.

    A password with a character that has a meaning in addresses ends at the wrong place, and the rest of it
    would be shown as a host or a port.
    """
    scheme = address.partition(":")[0]
    shown = f"{scheme}://…" if scheme.replace("+", "").isalnum() else "the address"
    try:
        parts = urlsplit(address)
    except ValueError:  # its text quotes what stands in brackets
        raise ConfigError(f"{shown}: in user and password [ is %5B, ] is %5D") from None
    if parts.netloc and "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ConfigError(f"{shown}: in user and password / is %2F, ? is %3F, # is %23")
    if "\0" in unquote(address):
        raise ConfigError(f"{shown}: a zero byte")
    return parts
