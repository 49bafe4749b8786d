from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from inventory.tables import Address, Table

BASE = Path("/somewhere")
WORD = re.compile("[a-z]+")


def table(values: dict[str, Any]) -> tuple[Table, list[str]]:
    faults: list[str] = []
    return Table(values, "", BASE, faults), faults


def test_what_is_right_is_returned_without_a_fault() -> None:
    read, faults = table({"word": "one", "file": "a/b", "at": "h:1", "two": ["x", "y"], "n": 7})
    assert read.text("word", WORD) == "one"
    assert read.path("file") == BASE / "a/b"
    assert read.address("at") == Address("h", 1)
    assert read.texts("two", WORD, count=2) == ("x", "y")
    assert read.number("n", None) == 7
    read.nothing_else()
    assert faults == []


def test_what_need_not_be_there_has_a_default() -> None:
    read, faults = table({})
    assert read.text("word", WORD, required=False) == ""
    assert read.number("n", 5) == 5
    assert read.tables("rows") == []
    assert faults == []


def test_all_faults_of_a_table_are_told_with_their_keys() -> None:
    read, faults = table({"word": "ONE", "at": "h", "n": True, "two": ["x", 1], "wrod": 1})
    read.text("word", WORD)
    read.address("at")
    read.number("n", 5)
    read.number("missing", None)
    read.texts("two", WORD, count=2)
    read.tables("wrod")
    read.nothing_else()
    assert faults == [
        "word: 'ONE' is not of the form [a-z]+",
        "at: no port in 'h'",
        "n: True is not a whole number from 1 to 10,000,000",
        "missing: missing",
        "two: 1 is not of the form [a-z]+",
        "wrod: tables wanted",
    ]


def test_an_unknown_key_names_the_nearest() -> None:
    read, faults = table({"adress": "h:1"})
    read.text("address", WORD, required=False)
    read.nothing_else()
    assert faults == ["adress: unknown key; did you mean 'address'?"]


def test_several_tables_may_have_something_in_common() -> None:
    read, faults = table({"common": {"a": "x", "b": "y"}, "each": [{"b": "z"}, {}]})
    first, second = read.tables("each", common="common")
    assert (first.text("a", WORD), first.text("b", WORD)) == ("x", "z")
    assert (second.text("a", WORD), second.text("b", WORD)) == ("x", "y")
    read.nothing_else()
    assert faults == []


def test_a_path_of_another_host_is_absolute() -> None:
    read, faults = table({"here": "/a", "there": "a"})
    assert read.path("here", absolute=True) == Path("/a")
    read.path("there", absolute=True)
    assert faults == ["there: 'a' is on another host: an absolute path wanted"]
