"""What traces need of a property list, found without reading it: a third of the time, for most messages.

A handler often asks for nothing but the body, so decoding all of its message only for one header would
be the larger part of what tracing costs the library. Pure.
"""

from __future__ import annotations

from messagebus._io.properties import CORRELATION_ID, HEADERS

__all__ = ["NOTHING", "glance"]

NOTHING = ""
# The field of a header table: length and text of the name, S, length and text of the value: 55 bytes,
# which is what version 00 of trace context has.
_FIELD = b"\x0btraceparentS\x00\x00\x00\x37"
_VALUE = len(_FIELD)
_NAME, _STATE, _BAGGAGE = b"traceparent", b"tracestate", b"baggage"


def glance(properties: bytes) -> str | None:
    """The traceparent of a message that has nothing else that a trace needs.

    `NOTHING`: it has none. None: look properly, it has more, or something of another form.
    """
    if len(properties) < 2:
        return None
    flags = properties[0] << 8 | properties[1]
    if flags & CORRELATION_ID:
        return None
    if not flags & HEADERS:
        return NOTHING
    at = properties.find(_FIELD)
    if at < 0:
        return None if _NAME in properties or _BAGGAGE in properties else NOTHING
    if _STATE in properties or _BAGGAGE in properties or properties.count(_NAME) > 1:
        return None
    return properties[at + _VALUE : at + _VALUE + 55].decode("ascii", "replace")
