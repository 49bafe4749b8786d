from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops import runner
from ops.errors import CommandFailed, NoAnswer, PlanFailed
from ops.journal import Journal
from ops.plan import Plan
from ops.step import Blocked, Command, Step


class Recorder:
    """Runs nothing; fails for argv that say so."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, command: Command) -> str:
        self.ran.append(" ".join(command.argv))
        if "fail" in command.argv:
            raise CommandFailed(command.argv, 3, "no such thing")
        return ""


def step(name: str, *words: str, **more: object) -> Step:
    return Step(
        name=name,
        commands=tuple(Command((word,)) for word in words),
        undo=(Command((f"undo-{name}",)),),
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.0)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path, "test")


def carry_out(plan: Plan, journal: Journal) -> tuple[list[str], list[str]]:
    recorder, said = Recorder(), list[str]()
    try:
        runner.carry_out(plan, recorder, journal, say=said.append)
    finally:
        carry_out.ran = recorder.ran  # type: ignore[attr-defined]
    return recorder.ran, said


def test_steps_run_in_their_order_each_with_a_line(journal: Journal) -> None:
    plan = Plan(name="test", steps=(step("first", "a", "b"), step("second", "c")))
    ran, said = carry_out(plan, journal)
    assert ran == ["a", "b", "c"]
    assert [line.split()[-1] for line in said] == ["first", "second"]
    assert journal.done == ()


def test_a_failed_command_ends_the_plan_and_the_next_run_resumes(
    journal: Journal, tmp_path: Path
) -> None:
    plan = Plan(name="test", steps=(step("first", "a"), step("second", "fail"), step("third", "c")))
    with pytest.raises(PlanFailed, match="step 'second': fail: exit code 3: no such thing"):
        carry_out(plan, journal)
    repaired = Plan(name="test", steps=(plan.steps[0], step("second", "b"), plan.steps[2]))
    ran, said = carry_out(repaired, Journal(tmp_path, "test"))
    assert ran == ["b", "c"]
    assert said[0].split() == ["before", "first"]


def test_a_run_that_only_looked_and_failed_is_not_one_to_take_up(
    journal: Journal, tmp_path: Path
) -> None:
    journal.begin({"name": "mb1"})
    looks = Step(name="look", until="it is so", check=lambda: "it is not", within_s=0)
    with pytest.raises(PlanFailed, match="it is not"):
        carry_out(Plan(name="test", steps=(looks, step("second", "a"))), journal)
    assert not Journal(tmp_path, "test").is_resumed
    journal.begin({"name": "mb1"})
    with pytest.raises(PlanFailed):
        carry_out(Plan(name="test", steps=(step("first", "fail"),)), journal)
    assert Journal(tmp_path, "test").is_resumed


def test_a_check_is_asked_until_it_holds(journal: Journal) -> None:
    answers: Iterator[str] = iter(["not yet", "not yet", ""])
    plan = Plan(name="test", steps=(step("first", check=lambda: next(answers)),))
    carry_out(plan, journal)
    assert list(answers) == []


def test_who_does_not_answer_is_asked_again(journal: Journal) -> None:
    looks: list[int] = []

    def check() -> str:
        looks.append(1)
        if len(looks) < 3:
            raise NoAnswer("agent of mb1 does not answer")
        return ""

    carry_out(Plan(name="test", steps=(step("first", check=check),)), journal)
    assert len(looks) == 3


def test_a_check_that_does_not_hold_in_time_fails_with_what_is_missing(journal: Journal) -> None:
    plan = Plan(name="test", steps=(step("first", check=lambda: "2 left", within_s=0.0),))
    with pytest.raises(PlanFailed, match="after 0 s: 2 left"):
        carry_out(plan, journal)
    assert journal.done == ()


def test_a_step_that_may_fail_says_so_and_goes_on(journal: Journal) -> None:
    lenient = step("first", check=lambda: "2 left", within_s=0.0, may_fail=True)
    ran, said = carry_out(Plan(name="test", steps=(lenient, step("second", "b"))), journal)
    assert ran == ["b"]
    assert said[0].endswith("first: 2 left")


def test_waiting_of_no_use_is_not_done(journal: Journal) -> None:
    def check() -> str:
        raise Blocked("no consumer for mb.sub/orders/billing")

    with pytest.raises(PlanFailed, match="no consumer"):
        carry_out(Plan(name="test", steps=(step("first", check=check),)), journal)


def test_undo_goes_backwards_from_the_step_that_failed(journal: Journal, tmp_path: Path) -> None:
    plan = Plan(
        name="test",
        steps=(step("first", "a"), step("second", "b"), step("third", "fail"), step("fourth")),
    )
    with pytest.raises(PlanFailed):
        carry_out(plan, journal)
    recorder = Recorder()
    runner.undo(plan, recorder, Journal(tmp_path, "test"), say=lambda line: None)
    assert recorder.ran == ["undo-third", "undo-second", "undo-first"]
    assert not Journal(tmp_path, "test").is_resumed


def test_who_stays_silent_ends_it_long_before_its_time(journal: Journal) -> None:
    def check() -> str:
        raise NoAnswer("agent of mb1 does not answer")

    deaf = step("first", check=check, within_s=3600.0, silent_within_s=0.0)
    with pytest.raises(PlanFailed, match="after 0 s: agent of mb1 does not answer"):
        carry_out(Plan(name="test", steps=(deaf,)), journal)
    assert journal.done == ()


def test_what_steps_prove_is_told_at_the_end_also_by_a_run_that_was_taken_up(
    journal: Journal, tmp_path: Path
) -> None:
    class Telling(Recorder):
        def run(self, command: Command) -> str:
            super().run(command)
            return "some line\nmoved 3 messages\n\n"

    first = step("first", "a", tells=True, proof=lambda: "0 left")
    runner.carry_out(
        Plan(name="test", steps=(first, step("second", "b"))),
        Telling(),
        journal,
        say=(said := list[str]()).append,
    )
    assert said[-1] == "   proved  moved 3 messages; 0 left"
    with pytest.raises(PlanFailed):
        carry_out(
            Plan(name="test", steps=(first, step("second", "fail"))), Journal(tmp_path, "test")
        )
    _, said = carry_out(Plan(name="test", steps=(first, step("second"))), Journal(tmp_path, "test"))
    assert said[-1] == "   proved  0 left"
