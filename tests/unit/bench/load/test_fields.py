from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from bench.load.fields import ANY, beyond, made


@dataclass(frozen=True, kw_only=True)
class Shape:
    needed: int
    share: float = 1.0
    name: str = ""
    on: bool = False
    pairs: tuple[tuple[float, int], ...] = ()
    other: Shape | None = None


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({}, "a.needed: is missing"),
        (3, "a: a table wanted"),
        ({"needed": 1, "nam": 1}, "a.nam is not known; did you mean 'a.name'?"),
        ({"needed": 1.0}, "a.needed: a whole number wanted, not 1.0"),
        ({"needed": 1, "share": float("inf")}, "a.share: a number wanted, not inf"),
        ({"needed": 1, "on": 1}, "a.on: true or false wanted, not 1"),
        ({"needed": 1, "name": 1}, "a.name: a text wanted, not 1"),
        (
            {"needed": 1, "pairs": [[1, 2], [1]]},
            "a.pairs: an array, each [a number, a whole number], wanted, not [[1, 2], [1]]",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named(table: Any, fault: str) -> None:
    faults: list[str] = []
    made(Shape, table, "a.", faults)
    assert faults == [fault]


def test_what_does_not_fit_has_its_default_so_that_the_rest_can_be_judged() -> None:
    assert made(Shape, {"needed": 3, "share": "x", "name": "y"}, "a.", []) == Shape(
        needed=3, name="y"
    )
    assert made(Shape, {"needed": "x"}, "a.", []) is None


def test_what_fits_is_made_and_arrays_are_tuples() -> None:
    faults: list[str] = []
    other = Shape(needed=2)
    found = made(Shape, {"needed": 1, "share": 2, "pairs": [[0.5, 2]], "other": other}, "", faults)
    assert found == Shape(needed=1, share=2, pairs=((0.5, 2),), other=other)
    assert faults == []


def test_numbers_have_bounds() -> None:
    shape = Shape(needed=5000, share=-1)
    assert beyond(shape, "a.", {"needed": (1, 5000), "share": (-1, ANY)}) == []
    assert beyond(shape, "a.", {"needed": (1, 4999), "share": (0, ANY)}) == [
        "a.needed: 1 to 4,999 wanted, not 5000",
        "a.share: 0 or more wanted, not -1",
    ]
