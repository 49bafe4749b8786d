from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lb.tables import Address, Table, nearest

BASE = Path("/base")
WORD = re.compile("[a-z]+")


def table(**values: Any) -> tuple[Table, list[str]]:
    faults: list[str] = []
    return Table(values, "", BASE, faults), faults


def test_what_is_good_is_returned() -> None:
    read, faults = table(a="x", b="h:1", c="f", d=7, e=["x", "y"], f={"g": "z"}, h=[{"i": "z"}])
    assert read.text("a", WORD) == "x"
    assert read.address("b") == Address("h", 1)
    assert read.path("c") == BASE / "f"
    assert read.number("d", None) == 7
    assert read.texts("e", WORD, count=2) == ("x", "y")
    assert read.table("f").text("g", WORD) == "z"
    assert [each.text("i", WORD) for each in read.tables("h")] == ["z"]
    read.nothing_else()
    assert faults == []


def test_what_may_be_missing_has_a_default() -> None:
    read, faults = table()
    assert read.text("a", WORD, required=False) == ""
    assert read.number("b", 5) == 5
    assert read.tables("c") == []
    read.table("d", required=False).nothing_else()
    assert faults == []


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (lambda t: t.text("none", WORD), "none: missing"),
        (lambda t: t.text("number", WORD), "number: str wanted, not int"),
        (lambda t: t.text("address", WORD), "address: 'h:1' is not of the form [a-z]+"),
        (lambda t: t.choice("word", "x", "y"), "word: 'word'; allowed: x, y"),
        (lambda t: t.path("word", absolute=True), "word: 'word' is on another host: an absolute"),
        (lambda t: t.address("word"), "word: no port in 'word'"),
        (lambda t: t.number("word", 1), "word: 'word' is not a whole number"),
        (lambda t: t.texts("list", WORD, count=3), "list: ['x', 'x']; 3 different ones wanted"),
        (lambda t: t.tables("list"), "list: tables wanted"),
        (lambda t: t.nothing_else(), "number: unknown key"),
    ],
)
def test_what_is_wrong_is_a_fault_with_its_key(read: Callable[[Table], object], fault: str) -> None:
    whole, faults = table(number=7, address="h:1", word="word", list=["x", "x"])
    read(whole)
    assert faults[0].startswith(fault)


def test_several_tables_may_have_something_in_common() -> None:
    read, faults = table(common={"a": "x", "b": "y"}, each=[{"b": "z"}, {}])
    first, second = read.tables("each", common="common")
    assert (first.text("a", WORD), first.text("b", WORD)) == ("x", "z")
    assert (second.text("a", WORD), second.text("b", WORD)) == ("x", "y")
    read.nothing_else()
    assert faults == []


def test_the_nearest_word_is_told_if_there_is_one() -> None:
    assert nearest("adress", ["address", "agent"]) == "; did you mean 'address'?"
    assert nearest("xyz", ["address"]) == ""
