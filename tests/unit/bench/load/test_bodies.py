from __future__ import annotations

import io
import itertools
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import InputInvalid
from bench.load import records as module
from bench.load.bodies import STAMP_BYTES, Drawer, Filler, read, stamped
from bench.load.profile import Messages
from bench.load.records import key_of, lines, paragraphs, records, write_records
from messagebus.message import BODY_BYTES_MAX


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


def test_records_are_the_paragraphs_between_blank_lines() -> None:
    text = b"\n\nPackage: a\nVersion: 1\n\n \n\nPackage: b\n"
    assert list(paragraphs(io.BytesIO(text))) == [b"Package: a\nVersion: 1", b"Package: b"]


def test_windows_line_ends_separate_paragraphs_as_well() -> None:
    assert list(paragraphs(io.BytesIO(b"a\r\n\r\nb\r\n"))) == [b"a", b"b"]


def test_lines_are_records_on_request_and_blank_ones_are_none() -> None:
    assert list(lines(io.BytesIO(b"a\n\n  \nb\r\nc"))) == [b"a", b"b", b"c"]


@given(st.lists(st.text("ab :\t", min_size=1).filter(str.strip), min_size=1))
def test_paragraphs_give_back_what_was_joined(texts: list[str]) -> None:
    joined = "\n\n".join(texts).encode()
    assert list(paragraphs(io.BytesIO(joined))) == [text.encode() for text in texts]


def test_a_record_larger_than_a_message_may_be_is_refused(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"small\n\n" + b"x" * (BODY_BYTES_MAX + 1))
    with pytest.raises(InputInvalid, match="record 2: larger than"):
        list(records(str(big)))
    big.write_bytes((b"x" * 1023 + b"\n") * (BODY_BYTES_MAX // 1024 + 1))
    with pytest.raises(InputInvalid, match="record 1: larger than"):
        list(records(str(big)))


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_an_input_without_a_record_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "empty").write_bytes(content)
    with pytest.raises(InputInvalid, match="empty: no record"):
        list(records(str(tmp_path / "empty")))


def test_an_unreadable_input_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match=r"cannot read: No such file"):
        list(records(str(tmp_path / "missing")))
    with pytest.raises(InputInvalid, match=r"cannot read: Is a directory"):
        list(records(str(tmp_path)))


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert list(records("-", by_line=True)) == [b"a", b"b"]


def test_without_a_name_it_is_the_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INDEX_COMMAND", ("printf", r"Package: a\n\nPackage: b\n"))
    assert list(records(None)) == [b"Package: a", b"Package: b"]


@pytest.mark.parametrize("command", [("no-such-command-here",), ("true",)])
def test_where_apt_is_missing_or_knows_nothing_it_is_the_list_of_installed_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "status").write_bytes(b"Package: installed\n")
    monkeypatch.setattr(module, "INDEX_COMMAND", command)
    monkeypatch.setattr(module, "INDEX_FILE", tmp_path / "status")
    assert list(records(None)) == [b"Package: installed"]


def test_reading_may_end_early_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INDEX_COMMAND", ("yes",))
    found = records(None, by_line=True)
    assert next(found) == b"y"
    found.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (b"Package: zlib1g\nVersion: 1", "zlib1g"),
        (b"Version: 1\nPackage: zlib1g", ""),
        (b"Package: " + b"x" * 300, ""),
        (b"Package: \xff\n", ""),
        (b"", ""),
    ],
)
def test_the_key_of_a_record_is_its_package(record: bytes, key: str) -> None:
    assert key_of(record) == key


@given(st.binary(max_size=200), st.booleans())
def test_written_records_are_read_back(text: bytes, by_line: bool) -> None:
    import tempfile

    found = list((lines if by_line else paragraphs)(io.BytesIO(text)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        assert write_records(path, iter(found)) == len(found)
        assert list(paragraphs(io.BytesIO(path.read_bytes()))) == found


def test_the_largest_line_is_read_back(tmp_path: Path) -> None:
    largest = b"x" * BODY_BYTES_MAX
    write_records(tmp_path / "records", [largest, b"y"])
    assert list(records(str(tmp_path / "records"))) == [largest, b"y"]
