"""core.attempts: one answer for each end of a run, and each run ends once, by itself or by its time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus.core.attempts import Ack, Drop, End, ParkNow, Retry, Rule, Run, Runs, decide
from tests.support.examples import examples

DAY_MS = 86_400_000
RULE = Rule(
    attempts_max=5,
    first_ms=1_000,
    max_ms=3_600_000,
    factor=2.0,
    jitter=0.0,
    then=ParkNow(),
    limit_ms=7 * DAY_MS,
)


@pytest.mark.parametrize(
    ("end", "attempt", "park", "expected"),
    [
        (End.RETURNED, 1, True, Ack()),
        (End.RETURNED, 9, False, Ack()),
        (End.FAILED, 1, True, Retry(2, 1_000)),
        (End.FAILED, 4, True, Retry(5, 8_000)),
        (End.FAILED, 5, True, ParkNow()),
        (End.FAILED, 5, False, Drop()),
        (End.FAILED, 99, True, ParkNow()),
        (End.FAILED_FOR_GOOD, 1, True, ParkNow()),
        (End.FAILED_FOR_GOOD, 1, False, Drop()),
        (End.LATER, 1, True, Retry(2, 1_000)),
        (End.LATER, 5, False, Drop()),
        (End.PARK, 1, False, ParkNow()),
        (End.REJECT, 1, True, ParkNow()),
        (End.REJECT, 1, False, Drop()),
    ],
)
def test_each_end_has_its_answer(end: End, attempt: int, park: bool, expected: object) -> None:
    assert (
        decide(RULE._replace(then=ParkNow() if park else Drop()), attempt, end, share=0.5)
        == expected
    )


@pytest.mark.parametrize(
    ("after_ms", "waited_ms"), [(0, 0), (90_000, 90_000), (8 * DAY_MS, 7 * DAY_MS)]
)
def test_a_handler_may_choose_the_delay_within_what_there_is(after_ms: int, waited_ms: int) -> None:
    assert decide(RULE, 1, End.LATER, after_ms=after_ms, share=1.0) == Retry(2, waited_ms)


def test_jitter_goes_as_far_up_as_down() -> None:
    rule_ = RULE._replace(jitter=0.2)
    delays = [decide(rule_, 2, End.FAILED, share=share) for share in (0.0, 0.5, 1.0)]
    assert delays == [Retry(3, 1_600), Retry(3, 2_000), Retry(3, 2_400)]


@given(
    attempts_max=st.integers(1, 1_000),
    attempt=st.integers(1, 1_000),
    first_ms=st.integers(0, DAY_MS),
    max_ms=st.integers(0, 7 * DAY_MS),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    share=st.floats(0, 1),
)
def test_delays_are_what_the_formula_says_and_never_beyond_their_bounds(
    attempts_max: int,
    attempt: int,
    first_ms: int,
    max_ms: int,
    factor: float,
    jitter: float,
    share: float,
) -> None:
    rule_ = RULE._replace(
        attempts_max=attempts_max, first_ms=first_ms, max_ms=max_ms, factor=factor, jitter=jitter
    )
    action = decide(rule_, attempt, End.FAILED, share=share)
    if attempt >= attempts_max:
        assert action == ParkNow()
        return
    assert isinstance(action, Retry)
    assert action.attempt == attempt + 1
    assert 0 <= action.delay_ms <= max_ms
    try:
        full_ms = min(float(max_ms), first_ms * factor ** (attempt - 1))
    except OverflowError:
        full_ms = float(max_ms) if first_ms else 0.0
    low, high = full_ms * (1 - jitter), min(max_ms, full_ms * (1 + jitter))
    assert low - 1 - full_ms * 1e-6 <= action.delay_ms <= high + 1 + full_ms * 1e-6


@dataclass(eq=False)
class Known:
    """The oracle's knowledge of a run."""

    run: Run[int]
    since_ns: int
    over: bool = False


LIMIT_NS = 100


class RunsMachine(RuleBasedStateMachine):
    """Machine whose oracle is a plain list of runs, each with its time."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: Runs[int] = Runs(LIMIT_NS)
        self.now_ns, self.count = 0, 0
        self.known: list[Known] = []

    @rule(passed_ns=st.integers(0, 60))
    def time_passes(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @rule()
    def one_starts(self) -> None:
        self.count += 1
        self.known.append(Known(self.runs.started(self.count, self.now_ns), self.now_ns))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from(self.known))
        self.known.remove(ended)
        assert self.runs.ended(ended.run) is not ended.over
        assert self.runs.ended(ended.run) is False
        assert not self.runs.is_overrunning(ended.run)

    @rule()
    def somebody_looks(self) -> None:
        late = [
            each for each in self.known if not each.over and self.now_ns - each.since_ns >= LIMIT_NS
        ]
        assert self.runs.overdue(self.now_ns) == [each.run for each in late]
        for each in late:
            each.over = True

    @invariant()
    def all_that_has_not_ended_is_seen(self) -> None:
        assert self.runs.open == [each.run for each in self.known if not each.over]
        assert set(self.runs.underway()) == {each.run for each in self.known}
        assert self.runs.overran == sum(each.over for each in self.known)
        oldest_ns = max((self.now_ns - each.since_ns for each in self.known), default=0)
        assert self.runs.oldest_ns(self.now_ns) == oldest_ns
        for each in self.known:
            assert self.runs.is_overrunning(each.run) is each.over
            assert each.run.since_ns == each.since_ns


TestRuns = RunsMachine.TestCase
TestRuns.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_without_a_limit_no_run_is_ever_late() -> None:
    runs: Runs[str] = Runs()
    run = runs.started("a", 0)
    assert runs.overdue(10**18) == []
    assert runs.ended(run)


def test_a_run_is_late_when_its_limit_has_passed_to_the_nanosecond() -> None:
    runs: Runs[str] = Runs(LIMIT_NS)
    run = runs.started("a", 7)
    assert runs.overdue(7 + LIMIT_NS - 1) == []
    assert runs.overdue(7 + LIMIT_NS) == [run]
