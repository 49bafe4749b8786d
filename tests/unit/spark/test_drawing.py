from __future__ import annotations

import pytest

from spark.bars import LOOKS
from spark.drawing import COLOURS, HATCHES, MARKERS, milliseconds


def test_whatever_has_a_colour_has_a_mark_a_hatch_and_a_look_of_its_own() -> None:
    assert len({*COLOURS}) == len({*HATCHES}) == len({*MARKERS}) == LOOKS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0851, "85.1 µs"),
        (1.239, "1.24 ms"),
        (120.4, "120 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (10_510.0, "10.51 s"),
    ],
)
def test_durations_are_for_people(value: float, text: str) -> None:
    assert milliseconds(value) == text
