"""consumer_lists.listfile: against an oracle that edits the parsed list instead of its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_lists import listfile
from consumer_lists.errors import EditRefused
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.errors import ListInvalid
from tests.support.lists import brokers, list_texts

TEXT = """\
# cluster: prod
# generation: 7
# the old hall
mb1.example:5672
mb2.example:5672 agent=9 # noisy
"""
MB1, MB2, MB3 = (Broker(f"mb{number}.example") for number in (1, 2, 3))


def test_adding_appends_a_line_and_raises_the_generation() -> None:
    changed = listfile.add(TEXT, MB3, agent_port=99)
    assert changed == TEXT.replace("7\n", "8\n", 1) + "mb3.example:5672 agent=99\n"


def test_draining_keeps_what_else_is_on_the_line() -> None:
    assert "\nmb2.example:5672 agent=9 draining  # noisy\n" in listfile.drain(TEXT, MB2)


def test_draining_is_taken_back() -> None:
    drained = listfile.drain(TEXT, MB1)
    assert BrokerList.parse(listfile.ready(drained, MB1)).listed == BrokerList.parse(TEXT).listed


def test_comments_outlive_an_edit() -> None:
    assert "# the old hall\n" in listfile.remove(TEXT, MB1)


def test_a_list_without_a_generation_gets_the_first() -> None:
    assert listfile.add("mb1\n", MB2) == "# generation: 1\nmb1\nmb2.example:5672\n"


def test_the_generation_comes_after_the_cluster() -> None:
    assert listfile.add("\n# cluster: x\nmb1", MB2).startswith(
        "\n# cluster: x\n# generation: 1\nmb1\n"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda: listfile.add(TEXT, MB1), "mb1.example:5672 is on the list"),
        (
            lambda: listfile.add(listfile.drain(TEXT, MB1), MB1),
            "on the list and draining; see `ready`",
        ),
        (lambda: listfile.drain(TEXT, MB3), "is not on the list: mb1.example:5672, mb2"),
        (lambda: listfile.drain(listfile.drain(TEXT, MB1), MB1), "is draining already"),
        (lambda: listfile.ready(TEXT, MB1), "is not draining"),
        (lambda: listfile.remove(TEXT, MB3), "is not on the list"),
        (lambda: listfile.remove("mb1.example\n", MB1), "is the last broker on the list"),
        (lambda: listfile.with_generation(TEXT, 0), "generation 0"),
        (lambda: listfile.with_generation(TEXT, 10**18), "generation 1000000000000000000"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(change: Callable[[], str], told: str) -> None:
    with pytest.raises(EditRefused, match=told):
        change()


@pytest.mark.parametrize("change", [listfile.add, listfile.drain, listfile.ready, listfile.remove])
def test_a_bad_list_is_not_edited(change: Callable[[str, Broker], str]) -> None:
    with pytest.raises(ListInvalid, match="line 2"):
        change("mb1\nmb2 drainin\n", MB1)


def _oracle(before: BrokerList, order: str, broker: Broker) -> BrokerList | None:
    """Return the list after the order; None when it is refused."""
    entries = {entry.broker: entry for entry in before}
    match order, entries.get(broker):
        case "add", None:
            entries[broker] = ListedBroker(broker=broker)
        case ("drain", ListedBroker(draining=False)) | ("ready", ListedBroker(draining=True)):
            now = not entries[broker].draining
            entries[broker] = dataclasses.replace(entries[broker], draining=now)
        case "remove", ListedBroker() if len(entries) > 1:
            del entries[broker]
        case _:
            return None
    return dataclasses.replace(
        before, generation=before.generation + 1, listed=tuple(entries.values())
    )


@given(list_texts(), st.sampled_from(["add", "drain", "ready", "remove"]), brokers, st.data())
def test_the_text_says_what_the_oracle_says(
    text: str, order: str, stranger: Broker, data: st.DataObject
) -> None:
    before = BrokerList.parse(text)
    broker = data.draw(st.sampled_from([*(entry.broker for entry in before), stranger]))
    wanted = _oracle(before, order, broker)
    try:
        changed = BrokerList.parse(getattr(listfile, order)(text, broker))
    except EditRefused:
        assert wanted is None
    else:
        assert changed == wanted


@given(list_texts(), st.integers(1, listfile.GENERATION_MAX))
def test_only_the_generation_changes(text: str, generation: int) -> None:
    before = BrokerList.parse(text)
    changed = BrokerList.parse(listfile.with_generation(text, generation))
    assert changed == dataclasses.replace(before, generation=generation)
