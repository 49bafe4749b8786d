from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bench.load.bodies import STAMP_BYTES, Drawer, Filler, read, stamped
from bench.load.profile import Messages


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


def sizes(messages: Messages, count: int = 64) -> Counter[int]:
    fillers = Drawer(messages, seed=1).fillers()
    return Counter(len(next(fillers).head) + STAMP_BYTES for _ in range(count))


def test_sizes_are_as_asked() -> None:
    assert sizes(Messages(size=100)) == {100: 64}
    found = sizes(Messages(sizes=((0.75, 50), (0.25, 500))))
    assert set(found) == {50, 500}
    assert found[50] > found[500]


def test_a_rare_size_is_as_rare_as_asked() -> None:
    found = sizes(Messages(sizes=((0.99, 50), (0.01, 500))), 4096)
    assert 20 <= found[500] <= 65


def test_large_bodies_are_few_and_not_all_the_same() -> None:
    fillers = Drawer(Messages(size=16 << 20), seed=1).fillers()
    assert 2 <= len({next(fillers).check for _ in range(64)}) <= 4


def test_real_payloads_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_text("a long enough first record\n\nshort\n")
    assert sizes(Messages(file=str(path)), 4) == {26: 2, STAMP_BYTES: 2}


def test_publishers_share_the_records_of_a_file_and_send_each_once(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_text("\n\n".join(f"Package: p{n}\nof a sufficient length" for n in range(7)))
    messages = Messages(file=str(path))
    parts = [Drawer(messages, seed=1, part=(number, 3)) for number in range(3)]
    assert [[*part.keys()] for part in parts] == [["p0", "p3", "p6"], ["p1", "p4"], ["p2", "p5"]]
    heads = [[filler.head for filler in part.fillers()] for part in parts]
    assert [len(each) for each in heads] == [3, 2, 2]
    assert heads[1][1].startswith(b"Package: p4")


def test_keys_are_skewed_as_asked_and_none_without() -> None:
    even = Counter(itertools.islice(Drawer(Messages(keys=4), seed=1).keys(), 4000))
    assert max(even.values()) < 1.3 * min(even.values())
    skewed = Counter(itertools.islice(Drawer(Messages(keys=4, key_skew=2), seed=1).keys(), 4000))
    assert skewed["k0"] > 3 * skewed["k1"] > 3 * skewed["k3"]
    assert next(Drawer(Messages(), seed=1).keys()) == ""
