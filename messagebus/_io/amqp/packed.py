"""Bodies of batches with a checksum, and compressed: docs/WIRE.md, section "Compressed batches", in code.

A checksum is of the body before compression. What was compressed is never unpacked beyond what it says, nor
beyond the largest body that a broker takes: a bomb costs no more than a plain batch. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from messagebus._io.amqp.batch import BatchDamaged, decode_batch
from messagebus._io.amqp.properties import (
    CONTENT_ENCODING,
    HEADERS,
    encode_batch_properties,
    read_encoding_and_headers,
    read_headers,
)
from messagebus.core.headers import CRC_HEADER
from messagebus.message import BODY_BYTES_MAX

DEFLATE = "deflate"
SIZE_HEADER = "mb-size"
ALTERED = "checksum: its bytes are not those that were published"
# Level 1 of zlib takes 50 messages of 200 bytes of JSON to a fifth, in a third of the time of level 6.
LEVEL = 1
# Below that, or where less than a tenth is saved, a batch stays plain.
PACKED_BYTES_MIN, WORTH = 1_024, 0.9
_MARKED = (CONTENT_ENCODING | HEADERS) >> 8  # in the first byte of a property list


def packed(
    body: bytes, message_id: str, stamp_s: int, *, persistent: bool = True
) -> tuple[bytes, bytes]:
    """Return properties and body of a batch with a checksum, compressed where that is worth it."""
    marks, encoding, whole = {CRC_HEADER: zlib.crc32(body)}, "", body
    if len(body) >= PACKED_BYTES_MIN and len(small := zlib.compress(body, LEVEL)) < WORTH * len(
        body
    ):
        marks[SIZE_HEADER], encoding, whole = len(body), DEFLATE, small
    properties = encode_batch_properties(
        message_id, stamp_s, encoding=encoding, marks=marks, persistent=persistent
    )
    return properties, whole


def entries_of(raw: bytes, body: bytes) -> list[tuple[bytes, bytes]]:
    """Return property list and body of each entry of a batch. Raises BatchDamaged, which says why."""
    return decode_batch(_unpacked(raw, body) if raw[0] & _MARKED else body)


def _unpacked(raw: bytes, body: bytes) -> bytes:
    """Return the body before compression, with the right checksum where there is one."""
    encoding, headers = read_encoding_and_headers(raw)
    if encoding == DEFLATE:
        body = _inflated(body, headers)
    elif encoding:
        raise BatchDamaged(f"content_encoding {encoding!r}: this version reads {DEFLATE}")
    if _differs(headers, body):
        raise BatchDamaged(ALTERED)
    return body


def is_altered(raw: bytes, body: bytes) -> bool:
    """Return whether the body of a message, or of an entry, has another checksum than its headers say."""
    return _differs(read_headers(raw), body)


def _differs(headers: Mapping[str, Any], body: bytes) -> bool:
    crc = headers.get(CRC_HEADER)
    return crc is not None and crc != zlib.crc32(body)


def _inflated(body: bytes, headers: Mapping[str, Any]) -> bytes:
    size = headers.get(SIZE_HEADER)
    if type(size) is not int or not 0 < size <= BODY_BYTES_MAX:
        raise BatchDamaged(f"{SIZE_HEADER} {size!r}: 1 to {BODY_BYTES_MAX} bytes")
    unpacking = zlib.decompressobj()
    try:
        whole = unpacking.decompress(body, size)
        more = unpacking.decompress(unpacking.unconsumed_tail, 1)
    except zlib.error as fault:
        raise BatchDamaged(f"it cannot be unpacked: {fault}") from None
    if more or len(whole) != size or not unpacking.eof or unpacking.unused_data:
        raise BatchDamaged(f"it does not unpack to the {size} bytes of its {SIZE_HEADER}")
    return whole
