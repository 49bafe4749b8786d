"""Batches with a checksum, and compressed; bombs and lies about them."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus._io.amqp.batch import BatchDamaged, EntryShape, decode_batch
from messagebus._io.amqp.packed import DEFLATE, PACKED_BYTES_MIN, entries_of, packed
from messagebus._io.amqp.properties import (
    ID_PLACE,
    bare_entry_shape,
    decode,
    encode_batch_properties,
    is_batch,
    read_headers,
)
from messagebus.message import BODY_BYTES_MAX


def body_of(*bodies: bytes) -> bytes:
    out: list[bytes] = []
    shape = EntryShape(bare_entry_shape("application/json"), len(ID_PLACE))
    shape.add(out, [f"{number:032x}" for number in range(len(bodies))], bodies)
    return b"".join(out)


def rows(count: int) -> list[bytes]:
    made = []
    for n in range(count):
        row = {"id": n, "customer": f"customer-{n * 7919 % 1000}", "total": n * 1.37, "lines": []}
        made.append(json.dumps(row | {"note": "x" * (200 - len(json.dumps(row)) - 12)}).encode())
    return made


def marked(body: bytes, *, encoding: str = DEFLATE, **marks: int) -> bytes:
    names = {f"mb-{name}": value for name, value in marks.items()}
    return encode_batch_properties("id", 1, encoding=encoding, marks=names)


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=30))
def test_what_is_packed_is_read_again(bodies: list[bytes]) -> None:
    whole = body_of(*bodies)
    raw, body = packed(whole, "id", 1)
    assert is_batch(raw)
    assert [each for _, each in entries_of(raw, body)] == bodies
    assert len(body) <= len(whole)


def test_fifty_rows_of_json_become_a_third_and_a_small_batch_stays_plain() -> None:
    whole = body_of(*rows(50))
    raw, body = packed(whole, "id", 1)
    assert len(body) <= 0.35 * len(whole)
    assert decode(raw, b"").content_encoding == DEFLATE
    assert read_headers(raw) == {"mb-size": len(whole), "mb-crc": zlib.crc32(whole)}
    small = body_of(b"x" * (PACKED_BYTES_MIN - 100))
    raw, body = packed(small, "id", 1)
    assert (body, decode(raw, b"").content_encoding) == (small, "")
    assert read_headers(raw) == {"mb-crc": zlib.crc32(small)}


@pytest.mark.guarantee("damaged-batch-is-parked")
@given(st.data())
def test_no_changed_byte_is_handed_out(data: st.DataObject) -> None:
    whole = body_of(*data.draw(st.sampled_from([rows(1), rows(20)])))
    raw, body = packed(whole, "id", 1)
    at = data.draw(st.integers(0, len(body) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    try:
        entries = entries_of(raw, body[:at] + bytes((body[at] ^ bit,)) + body[at + 1 :])
    except BatchDamaged:
        return
    assert entries == decode_batch(whole), (
        "a bit without a meaning, behind the last block of deflate"
    )


@pytest.mark.guarantee("damaged-batch-is-parked")
def test_lies_about_a_compressed_batch_are_named() -> None:
    whole = body_of(*rows(20))
    small, size, crc = zlib.compress(whole), len(whole), zlib.crc32(whole)
    assert entries_of(marked(small, size=size), small) == decode_batch(whole)
    for raw, body, reason in (
        (marked(small), small, "mb-size None"),
        (marked(small, size=0), small, "mb-size 0"),
        (marked(small, size=BODY_BYTES_MAX + 1), small, "mb-size 16777217"),
        (marked(small, size=size - 1), small, f"does not unpack to the {size - 1} bytes"),
        (marked(small, size=size + 1), small, f"does not unpack to the {size + 1} bytes"),
        (marked(small, size=size), small[:-1], "does not unpack"),
        (marked(small, size=size), small + b"x", "does not unpack"),
        (marked(small, size=size), b"x" + small, "cannot be unpacked"),
        (marked(small, size=size, crc=crc + 1), small, "checksum"),
        (marked(whole, encoding="", crc=crc + 1), whole, "checksum"),
        (marked(small, encoding="zstd", size=size), small, "content_encoding 'zstd'"),
    ):
        with pytest.raises(BatchDamaged, match=reason):
            entries_of(raw, body)


@pytest.mark.guarantee("damaged-batch-is-parked")
@given(st.binary(min_size=1), st.integers(0, 9))
def test_who_knows_no_compression_takes_a_compressed_batch_for_a_damaged_one(
    body: bytes, level: int
) -> None:
    with pytest.raises(BatchDamaged, match="entry 1 at byte 0"):
        decode_batch(zlib.compress(body, level))


BOMB = """
import resource, zlib
from messagebus._io.amqp.batch import BatchDamaged
from messagebus._io.amqp.packed import entries_of
from messagebus._io.amqp.properties import encode_batch_properties
squeeze = zlib.compressobj(9)
parts = [squeeze.compress(bytes(1 << 20)) for _ in range(1024)]
bomb = b"".join(parts) + squeeze.flush()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
for size in (1000, 1 << 24, 1 << 30):
    marks = {"mb-size": size}
    try:
        entries_of(encode_batch_properties("id", 1, encoding="deflate", marks=marks), bomb)
    except BatchDamaged as fault:
        print(fault)
"""


@pytest.mark.guarantee("damaged-batch-is-parked")
def test_a_bomb_of_a_gigabyte_costs_no_more_than_a_plain_batch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMB], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [
        "it does not unpack to the 1000 bytes of its mb-size",
        "it does not unpack to the 16777216 bytes of its mb-size",
        "mb-size 1073741824: 1 to 16777216 bytes",
    ]
