"""The id that a message is known by in a store of deduplication, and how old it is."""

from __future__ import annotations

from messagebus._io.amqp.properties import read_headers, read_message_id, read_stamp_ms
from messagebus._io.consume.ordered import is_redriven
from messagebus._io.consume.runs import handled_by
from messagebus.core.claims import key_of
from messagebus.core.parking import DUE_STEP_MS, REDRIVEN, STEP_MARK, read_due_ms
from messagebus.handling import Park
from messagebus.inbox import Once
from messagebus.message import Delivery

# The least that `Dedup.remember_s` may be: what is younger is never too old.
REMEMBER_MS_MIN = 1_000
_REDRIVEN = REDRIVEN.encode()
# The character that is read for bytes that are no UTF-8.
_REPLACED = "\ufffd"


def dedup_id(message_id: str, redriven: int) -> str:
    """Return the id that a message is known by in a store: a message that was redriven runs again.

    The surrogate between both has no form in UTF-8: no message that a publisher sends has such an id.
    """
    return f"{message_id}\ud800{redriven}" if redriven else message_id


def dedup_id_of(delivery: Delivery) -> str:
    """Return the `dedup_id` of a delivery's message; "" for a message without an id."""
    message_id = read_message_id(delivery._properties) or delivery.message_id
    if (
        _REPLACED in message_id
    ):  # ids are compared by their bytes, and no others than UTF-8 have a form
        message_id = read_message_id(delivery._properties, "surrogateescape") or message_id
    if message_id and _REDRIVEN in delivery._properties:
        count = delivery._library_headers.get(REDRIVEN)
        return dedup_id(message_id, count if isinstance(count, int) else 0)
    return message_id


def once_of(delivery: Delivery) -> Once:
    """Return a handler's parameter: its message, to be noted as done in the application's database.

    Raises Park for a message without an id.
    """
    message_id = dedup_id_of(delivery)
    if not message_id:
        raise Park("a message without an id cannot be told from its copies")
    key = key_of(str(delivery.source), message_id)
    dedup = getattr(handled_by(), "_dedup", None)
    return Once(key) if dedup is None else Once(key, remember_s=dedup.remember_s)


def id_and_age(delivery: Delivery, now_ms: int) -> tuple[str, int]:
    """Return the `dedup_id_of` a delivery, and its message's age in ms: that since its first publish.

    The age is that since the message was due, if it was delayed, and 0 for a redriven one. now_ms: of the
    wall clock, as the stamps of messages.
    """
    raw = delivery._properties
    message_id, stamp_ms = read_message_id(raw), read_stamp_ms(raw)
    is_young = stamp_ms is None or now_ms - stamp_ms < REMEMBER_MS_MIN
    # As nearly all are: no mark of ours, not of a batch, and an id of UTF-8.
    if is_young and b"mb-" not in raw and not delivery._part and _REPLACED not in message_id:
        return message_id, 0
    return dedup_id_of(delivery), _age_ms(delivery, stamp_ms, now_ms)


def _age_ms(delivery: Delivery, stamp_ms: int | None, now_ms: int) -> int:
    raw = delivery._properties
    first_ms = delivery.first_ms if b"mb-first-ms" in raw or delivery._part else stamp_ms
    age_ms = 0 if first_ms is None else now_ms - first_ms
    if age_ms < REMEMBER_MS_MIN:
        return age_ms
    # It was not to be handled before: nobody can have forgotten that it was.
    if is_redriven(delivery):
        return 0
    if STEP_MARK in raw:
        due_ms = read_due_ms(read_headers(raw))
        if due_ms is not None:
            return now_ms - due_ms - DUE_STEP_MS
    return age_ms
