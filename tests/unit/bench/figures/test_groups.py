import pytest

from bench.errors import InputInvalid
from bench.figures.groups import GROUPS, chosen


def names(*wanted: str) -> list[str]:
    return [group.name for group in chosen(wanted)]


def test_a_name_means_itself_and_all_that_begin_with_it() -> None:
    assert names("client.publish") == ["client.publish"]
    assert names("way") == ["way.publish", "way.memory", "way.attach", "way.kill"]
    assert names() == [group.name for group in GROUPS]
    assert set(names("client", "comfort", "measure", "ops", "way")) == set(names())


def test_a_name_that_means_nothing_tells_what_there_is() -> None:
    with pytest.raises(InputInvalid, match=r"client\.batch"):
        chosen(["client.pub"])


def test_names_are_distinct() -> None:
    assert len({group.name for group in GROUPS}) == len(GROUPS)
