"""The rule that keeps brokers serving, beside a naive oracle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.errors import TooFewServe
from inventory.serving import FORCE, refuse_last, too_few

FAULTS = st.dictionaries(st.sampled_from(["mb1", "mb2", "mb3", "mb4"]), st.sampled_from(["", "x"]))


@given(FAULTS, st.sampled_from(["mb1", "mb9"]), st.integers(1, 4))
def test_a_broker_goes_when_it_takes_nothing_or_enough_others_take_publishes(
    faults: dict[str, str], name: str, wanted: int
) -> None:
    others = [other for other in faults if other != name and not faults[other]]
    is_refused = faults.get(name, "") == "" and len(others) < wanted
    assert bool(too_few(faults, {name}, wanted)) is (len(others) < wanted)
    try:
        refuse_last(name, faults, wanted)
    except TooFewServe:
        assert is_refused
    else:
        assert not is_refused


def test_a_refusal_names_who_does_not_serve_and_the_flag() -> None:
    with pytest.raises(TooFewServe, match=rf"mb1 is not taken out: .*mb2: held.*{FORCE}"):
        refuse_last("mb1", {"mb1": "", "mb2": "held"}, 1)
    with pytest.raises(TooFewServe, match="there is no other"):
        refuse_last("mb1", {"mb1": ""}, 1)
