"""messagebus.secret: a text that is never shown."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.secret import Secret

SHOWN: list[Callable[[Secret], object]] = [
    repr,
    str,
    ascii,
    lambda secret: f"{secret}",
    lambda secret: f"{secret:>40}",
    lambda secret: f"{secret!r}",
    lambda secret: "%s" % secret,  # noqa: UP031 - that is what loggers do
    lambda secret: [secret],
    lambda secret: {"x": secret},
]


@pytest.mark.parametrize("show", SHOWN)
def test_nothing_shows_it(show: Callable[[Secret], object]) -> None:
    assert "sesame" not in str(show(Secret("sesame")))


def test_reveal_is_the_one_way() -> None:
    assert Secret("sesame").reveal() == "sesame"
    assert not hasattr(Secret("sesame"), "__dict__")


@pytest.mark.parametrize("leave", [pickle.dumps, json.dumps, copy.deepcopy, copy.copy])
def test_it_does_not_leave_the_process(leave: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError):
        leave(Secret("sesame"))


@given(st.text(), st.text())
def test_equal_texts_are_equal_secrets(one: str, other: str) -> None:
    assert (Secret(one) == Secret(other)) == (one == other)
    assert Secret(one) != one
    assert hash(Secret(one)) == hash(Secret(one))


def test_bytes_of_an_environment_that_are_no_text_compare() -> None:
    assert Secret("\udcff") == Secret("\udcff")
