import json

import pytest

from tests.support.trials.once_judge import (
    CAUSES,
    DIED,
    FAILED,
    FORGOT,
    KILLED,
    LAPSED,
    STOOD,
    STORE_AWAY,
    Counted,
    Effect,
    Happening,
    Rule,
    Verdict,
    judge_effects,
)

S = 1_000_000_000
LEASE_S = 6
NUMBERS = range(1, 101)


def effect(order: int, process: str = "w1", at_s: float = 0, done_s: float | None = 0.02) -> Effect:
    """Return one that was received a second before. done_s: after its begin."""
    began = int((at_s or order) * S)
    return Effect(
        *(order, f"{process}:{order}@{began}", process, began + S // 100),
        received_ns=began - S,
        done_ns=None if done_s is None else began + int(done_s * S),
    )


def happening(kind: str, process: str, began_s: float, ended_s: float) -> Happening:
    return Happening(kind, process, int(began_s * S), int(ended_s * S))


def clean() -> list[Effect]:
    return [effect(number) for number in NUMBERS]


def doubled(done_s: float | None) -> list[Effect]:
    """Return effects of which order 17 has a second one, 8 s later. done_s: after the first one's begin."""
    others = [each for each in clean() if each.order != 17]
    return [*others, effect(17, done_s=done_s), effect(17, "w2", at_s=25)]


def counted(rule: Rule, effects: list[Effect], *happened: Happening, failed: str = "") -> Counted:
    return judge_effects(
        "bills",
        rule,
        NUMBERS,
        effects,
        happenings=happened,
        failed_runs={failed},
        lease_s=LEASE_S,
    )


def verdict(*tables: Counted, orders: int = 100, rolled_back: int = 1, copies: int = 1) -> Verdict:
    return Verdict(
        orders=orders,
        rolled_back=rolled_back,
        copies=copies,
        parked=0,
        tables=list(tables),
        kills={"broker-kill": 1},
    )


@pytest.mark.parametrize("rule", ["inbox", "dedup"])
def test_a_run_in_which_each_order_has_one_effect_holds(rule: Rule) -> None:
    found = counted(rule, clean())
    assert (found.expected, found.doubled, found.faults) == (100, 0, [])
    assert verdict(found).faults == []


@pytest.mark.parametrize("rule", ["inbox", "dedup"])
def test_one_lost_order_is_found(rule: Rule) -> None:
    found = counted(rule, [each for each in clean() if each.order != 17])
    assert found.missing == [17]
    assert verdict(found).faults == ["bills: 1 missing, such as 17"]


@pytest.mark.parametrize("rule", ["inbox", "dedup"])
def test_an_effect_of_an_order_that_was_rolled_back_is_found(rule: Rule) -> None:
    found = counted(rule, [*clean(), effect(500)])
    assert found.faults == ["bills: 1 of orders that were never committed, such as 500"]


@pytest.mark.parametrize("rule", ["inbox", "dedup"])
def test_a_doubled_order_without_a_cause_is_found(rule: Rule) -> None:
    found = counted(rule, [*clean(), effect(17, "w2", at_s=30)])
    assert (found.doubled, len(found.unexplained)) == (1, 1)
    assert "doubled without a cause" in found.faults[0]


def test_an_inbox_has_no_excuse_whatever_happened() -> None:
    found = counted(
        "inbox",
        [*clean(), effect(17, "w2", at_s=20)],
        happening(KILLED, "w1", 17.1, 17.1),
        happening(STORE_AWAY, "", 16, 30),
    )
    assert len(found.unexplained) == 1


@pytest.mark.parametrize(
    ("cause", "done_s", "happened"),
    [
        (DIED, None, happening(KILLED, "w1", 17.2, 17.3)),
        # Until its death it did not reach the store, however long that was.
        (DIED, None, happening(KILLED, "w1", 40, 40)),
        (LAPSED, 7.5, happening(STOOD, "w1", 17.005, 24)),
        # The claim was made, and ran out, before the run began.
        (LAPSED, 0.02, happening(STOOD, "w1", 12, 16.9)),
        (LAPSED, 7.5, happening(STORE_AWAY, "", 17.005, 24)),
        (LAPSED, 7.5, happening(STORE_AWAY, "w1", 17.005, 24)),
        (FORGOT, 0.6, happening(STORE_AWAY, "", 17.5, 20)),
    ],
)
def test_each_named_cause_explains_a_double_behind_deduplication(
    cause: str, done_s: float | None, happened: Happening
) -> None:
    found = counted("dedup", doubled(done_s), happened)
    assert found.causes == {cause: 1}
    assert verdict(found).faults == []


def test_a_run_that_failed_after_its_commit_explains_the_next_one() -> None:
    first = effect(17)
    found = counted("dedup", [*clean(), effect(17, "w2", at_s=25)], failed=first.run)
    assert found.causes == {FAILED: 1}
    assert FAILED in CAUSES


@pytest.mark.parametrize(
    "happened",
    [
        pytest.param(happening(KILLED, "w2", 17.2, 17.3), id="another process died"),
        pytest.param(happening(KILLED, "w1", 17.3, 17.3), id="it died after its `done`"),
        pytest.param(happening(KILLED, "w1", 16, 16.5), id="a start of before died"),
        pytest.param(happening(STOOD, "w1", 17.5, 24), id="it stood after its `done`"),
        pytest.param(happening(STOOD, "w1", 17.005, 19), id="it stood for less than the lease"),
        pytest.param(happening(STOOD, "w3", 17.005, 30), id="another process stood"),
        pytest.param(happening(STORE_AWAY, "w1", 16.5, 19), id="it missed its store for a moment"),
        pytest.param(happening(STORE_AWAY, "w3", 17.5, 30), id="another one missed its store"),
        pytest.param(happening(STORE_AWAY, "", 5, 6), id="the store failed over before"),
        pytest.param(happening(STORE_AWAY, "", 18, 23), id="what was done was copied before"),
    ],
)
def test_what_happened_elsewhere_or_at_another_time_explains_nothing(happened: Happening) -> None:
    found = counted("dedup", [*clean(), effect(17, "w2", at_s=25)], happened)
    assert len(found.unexplained) == 1


def test_a_failover_after_both_effects_explains_nothing() -> None:
    found = counted("dedup", doubled(None), happening(STORE_AWAY, "", 26, 28))
    assert len(found.unexplained) == 1


def test_a_store_that_was_never_told_an_end_shows_nothing() -> None:
    found = counted("dedup", [effect(number, done_s=None) for number in NUMBERS])
    assert found.faults == ["bills: no `done` was stored"]


def test_a_verdict_with_a_cause_can_be_written() -> None:
    found = verdict(counted("dedup", doubled(None), happening(KILLED, "w1", 17.2, 17.3)))
    assert json.loads(json.dumps(found.as_json()))["tables"][0]["causes"] == {DIED: 1}


def test_of_three_effects_each_one_after_the_first_needs_its_cause() -> None:
    found = counted(
        "dedup",
        [*doubled(None), effect(17, "w3", at_s=50)],
        happening(KILLED, "w1", 17.2, 17.3),
    )
    assert (found.doubled, found.causes, len(found.unexplained)) == (2, {DIED: 1}, 1)


def test_a_run_in_which_nothing_happened_shows_nothing() -> None:
    none = judge_effects("bills", "inbox", (), ())
    found = verdict(none, orders=0, rolled_back=0, copies=0)
    found.kills = {"broker-kill": 0, "relay-kill": 2}
    assert found.faults == [
        "no order was committed: 0 of 0 shows nothing",
        "no transaction was rolled back",
        "no copy came a second time",
        "broker-kill never happened",
    ]


def test_a_parked_message_is_a_fault() -> None:
    found = verdict(counted("inbox", clean()))
    found.parked = 2
    assert found.faults == ["2 messages are parked"]
