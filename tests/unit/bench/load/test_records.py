import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import InputInvalid
from bench.load import records as module
from bench.load.records import key_of, lines, paragraphs, records, write_records
from messagebus.message import BODY_BYTES_MAX


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
