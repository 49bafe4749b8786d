"""A text that is never shown."""

from __future__ import annotations

import hmac

__all__ = ["Secret"]


class Secret:
    """Password or token. ``reveal()`` is the only way to its text; repr, str and format hide it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself: for the one call that needs it."""
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
