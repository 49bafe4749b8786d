from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.run.stamp import STAMP_BYTES, Filler, read, stamped


@given(
    st.binary(min_size=STAMP_BYTES, max_size=60),
    st.integers(0, 65535),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63),
)
def test_a_body_has_its_length_and_gives_back_its_stamp(
    filler: bytes, publisher: int, sequence: int, intended_ns: int
) -> None:
    body = stamped(Filler.of(filler), publisher, sequence, intended_ns)
    assert len(body) == len(filler)
    assert read(body) == (publisher, sequence, intended_ns)


@given(st.integers(0, 39), st.integers(1, 255))
def test_one_altered_byte_is_noticed_wherever_it_is(place: int, change: int) -> None:
    body = bytearray(stamped(Filler.of(bytes(40)), 1, 2, 3))
    body[place] ^= change
    assert read(bytes(body)) is None


def test_a_foreign_body_has_no_stamp() -> None:
    assert read(b"") is None
    assert read(b"x" * 100) is None
