"""Runs of plans, and the journal that they write."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import CommandFailed
from messagebus.files import write_whole
from ops.errors import JournalUnreadable, NoAnswer, PlanFailed
from ops.run import runner
from ops.run.journal import Journal, abandon, is_open, open_runs
from ops.run.plan import Blocked, Command, Plan, Step


class Recorder:
    """Runner that runs nothing; it fails for argv that say so."""

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
    made = Journal(tmp_path, "test")
    made.begin({})
    return made


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
    with pytest.raises(PlanFailed, match="after 0 s of silence: agent of mb1 does not answer"):
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
    journal.begin({})
    with pytest.raises(PlanFailed):
        carry_out(Plan(name="test", steps=(first, step("second", "fail"))), journal)
    _, said = carry_out(Plan(name="test", steps=(first, step("second"))), Journal(tmp_path, "test"))
    assert said[-1] == "   proved  0 left"


def failing(*steps: Step) -> Plan:
    return Plan(name="test", steps=(*steps, step("last", "fail")))


def carried(plan: Plan, folder: Path) -> list[str]:
    """Carry out a plan that fails; return the commands that ran."""
    with pytest.raises(PlanFailed):
        carry_out(plan, Journal(folder, "test"))
    return carry_out.ran  # type: ignore[attr-defined, no-any-return]


def test_what_a_journal_says_was_done_must_be_how_the_plan_begins(
    journal: Journal, tmp_path: Path
) -> None:
    with pytest.raises(PlanFailed):
        carry_out(failing(step("first", "a"), step("second", "b")), journal)
    for other in (("second",), ("first", "other"), ()):
        with pytest.raises(PlanFailed, match=r"started with other options.*--abandon"):
            carry_out(Plan(name="test", steps=tuple(map(step, other))), Journal(tmp_path, "test"))
        assert carry_out.ran == []  # type: ignore[attr-defined]


def test_a_fresh_step_is_done_again_until_the_next_one_is_done(
    journal: Journal, tmp_path: Path
) -> None:
    looks = step("look", "look", is_fresh=True)
    with pytest.raises(PlanFailed):
        carry_out(failing(step("first", "a"), looks), journal)
    assert carried(failing(step("first", "a"), looks), tmp_path) == ["look", "fail"]
    assert carried(failing(step("first", "a"), looks, step("stop", "s")), tmp_path) == [
        *("look", "s", "fail")
    ]
    assert carried(failing(step("first", "a"), looks, step("stop", "s")), tmp_path) == ["fail"]


@pytest.mark.parametrize("answer", ["the list names it", NoAnswer("agent of mb1"), Blocked("no")])
def test_a_guard_that_does_not_hold_keeps_the_commands_from_being_run(
    journal: Journal, tmp_path: Path, answer: str | Exception
) -> None:
    def guard() -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    guarded = step("erase", "rm", guard=guard, undo_guard=guard)
    plan = Plan(name="test", steps=(step("first", "a"), guarded))
    with pytest.raises(PlanFailed, match="'erase': not done, because"):
        carry_out(plan, journal)
    assert carry_out.ran == ["a"]  # type: ignore[attr-defined]
    with pytest.raises(PlanFailed, match="not done, because"):
        runner.undo(plan, recorder := Recorder(), Journal(tmp_path, "test"), say=print)
    assert recorder.ran == []


class Disk(Recorder):
    """Disk that lists `files` when it is asked to."""

    def __init__(self, *files: str) -> None:
        super().__init__()
        self.files = list(files)

    def run(self, command: Command) -> str:
        super().run(command)
        return "\n".join(self.files) if command.argv == ("list",) else ""


LIST = Command(("list",))
STOP = step("stop", "stop", seal=LIST)
ERASE = step("erase", "rm", seal=LIST, sealed_by="stop")


@pytest.mark.parametrize(
    ("files", "erased"),
    [
        (["a 1", "b 2"], True),
        (["b 2"], True),
        ([], True),
        (["a 1", "b 3"], False),
        (["a 1", "b 2", "c 1"], False),
    ],
    ids=["same", "erased in part before", "erased before", "changed", "more"],
)
def test_what_was_written_since_the_stop_is_not_erased(
    journal: Journal, tmp_path: Path, files: list[str], erased: bool
) -> None:
    disk = Disk("a 1", "b 2")
    with pytest.raises(PlanFailed):
        runner.carry_out(failing(STOP), disk, journal, say=print)
    disk.files, disk.ran = files, []
    plan = Plan(name="test", steps=(STOP, ERASE))
    if erased:
        runner.carry_out(plan, disk, Journal(tmp_path, "test"), say=print)
        assert disk.ran == ["list", "rm"]
        return
    with pytest.raises(PlanFailed, match="have changed since 'stop'"):
        runner.carry_out(plan, disk, Journal(tmp_path, "test"), say=print)
    assert disk.ran == ["list"]


def test_an_undo_that_failed_is_taken_up_and_what_it_took_back_is_done_again(
    journal: Journal, tmp_path: Path
) -> None:
    class Refusing(Recorder):
        def run(self, command: Command) -> str:
            super().run(command)
            if command.argv == ("undo-first",):
                raise CommandFailed(command.argv, 1, "an agent is away")
            return ""

    steps = (step("first", "a"), step("second", "b"))
    with pytest.raises(PlanFailed):
        carry_out(failing(*steps), journal)
    with pytest.raises(PlanFailed, match="undo first"):
        runner.undo(failing(*steps), Refusing(), Journal(tmp_path, "test"), say=print)
    assert Journal(tmp_path, "test").done == ("first",)
    again = Recorder()
    runner.undo(failing(*steps), again, Journal(tmp_path, "test"), say=print)
    assert again.ran == ["undo-second", "undo-first"]
    assert not Journal(tmp_path, "test").is_resumed


def test_a_command_of_ours_that_a_broker_waits_for_needs_no_process(journal: Journal) -> None:
    called = list[str]()
    command = Command(("no-such-program",), call=lambda: called.append("it"))
    plan = Plan(name="test", steps=(Step(name="first", commands=(command,)),))
    runner.carry_out(plan, runner.HostRunner(), journal, say=lambda _line: None)
    assert called == ["it"]
    assert "     $ no-such-program" in plan.lines()


@pytest.mark.parametrize("fault", [NoAnswer("db2: silent"), OSError(errno.ENOSPC, "No space left")])
def test_a_fault_of_such_a_command_fails_its_step(journal: Journal, fault: Exception) -> None:
    def fails() -> None:
        raise fault

    plan = Plan(
        name="test", steps=(Step(name="first", commands=(Command(("ops", "x"), call=fails),)),)
    )
    with pytest.raises(PlanFailed, match=r"step 'first': ops: exit code 1: .*(silent|No space)"):
        runner.carry_out(plan, runner.HostRunner(), journal, say=lambda _line: None)


def test_a_plan_shows_exactly_what_it_runs() -> None:
    plan = Plan(
        name="add mb4",
        steps=(
            Step(
                name="start broker mb4",
                commands=(Command(("systemctl", "start", "a b"), "mb4.example"),),
                until="it answers",
                within_s=120,
            ),
            Step(name="say", commands=(Command(("echo", "it's")),)),
        ),
    )
    assert list(plan.lines()) == [
        "  1. start broker mb4",
        "     $ ssh mb4.example 'systemctl start '\"'\"'a b'\"'\"''",
        "     until it answers, 120 s without progress at most",
        "  2. say",
        "     $ echo 'it'\"'\"'s'",
    ]


def begun(folder: Path, name: str, *brokers: str) -> Journal:
    journal = Journal(folder, name)
    journal.begin({"address": "x"}, brokers=brokers)
    return journal


def test_an_unfinished_run_is_taken_up(tmp_path: Path) -> None:
    first = begun(tmp_path / "journal", "add mb4", "mb4")
    first.record("make node mb4", 0.1)
    first.record("start broker mb4", 5.0, "it answers")
    second = Journal(tmp_path / "journal", "add mb4")
    assert second.is_resumed
    assert (second.done, second.proofs) == (first.done, first.proofs)
    assert second.done == ("make node mb4", "start broker mb4")
    assert second.facts == {"address": "x"}
    assert (second.last, second.who) == (first.last, first.who)
    assert not Journal(tmp_path / "journal", "add mb5").is_resumed


def test_a_step_that_was_undone_is_not_done(tmp_path: Path) -> None:
    journal = begun(tmp_path, "add mb4")
    for step in ("one", "two", "three"):
        journal.record(step, 0.1)
    journal.take_back("three")
    assert journal.done == Journal(tmp_path, "add mb4").done == ("one", "two")
    journal.record("three", 0.1)
    assert Journal(tmp_path, "add mb4").done == ("one", "two", "three")


def test_a_finished_run_is_kept_and_not_taken_up(tmp_path: Path) -> None:
    journal = begun(tmp_path, "add mb4")
    journal.record("make node mb4", 0.1)
    journal.seal("stop broker mb4", "a 1 2 3")
    journal.finish()
    assert Journal(tmp_path, "add mb4").done == ()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("tail", [b"\x00\x00\x00", b'{"step": "thr', b'{"step": "\xff'])
def test_a_line_that_a_crash_cut_off_does_not_count_and_the_next_one_does(
    tmp_path: Path, tail: bytes
) -> None:
    journal = begun(tmp_path, "add mb4")
    journal.record("one", 0.1)
    with (tmp_path / "add+mb4.jsonl").open("ab") as file:
        file.write(tail)
    resumed = Journal(tmp_path, "add mb4")
    assert resumed.done == ("one",)
    resumed.record("two", 0.1)
    assert Journal(tmp_path, "add mb4").done == ("one", "two")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\x00\x00\n", "line 3 is none of this kit's"),
        (b'["step"]\n', "line 3 is none of this kit's"),
        (b'{"step": "two"}\n', "line 3 is none of this kit's"),
        (b'{"step": "two", "at": "yesterday"}\n', "line 3 is none of this kit's"),
    ],
)
def test_a_damaged_journal_is_named_and_can_be_closed(
    tmp_path: Path, line: bytes, why: str
) -> None:
    begun(tmp_path, "add mb4", "mb4").record("one", 0.1)
    file = tmp_path / "add+mb4.jsonl"
    file.write_bytes(file.read_bytes() + line)
    with pytest.raises(JournalUnreadable, match=f"add.mb4.jsonl: {why}.*--abandon"):
        Journal(tmp_path, "add mb4")
    (other,) = open_runs(tmp_path, but="remove mb2")
    assert other.name == "add mb4"
    assert other.fault
    assert other.concerns(frozenset({"mb2"})), "nobody knows what it is about"
    abandon(tmp_path, "add mb4")
    assert not Journal(tmp_path, "add mb4").is_resumed
    assert not is_open(tmp_path, "add mb4")


def test_a_run_whose_journal_was_taken_away_ends_and_begins_no_other(tmp_path: Path) -> None:
    journal = begun(tmp_path, "add mb4", "mb4")
    (tmp_path / "add+mb4.jsonl").rename(tmp_path / "elsewhere")
    with pytest.raises(JournalUnreadable, match="it was taken away during the run"):
        journal.record("one", 0.1)
    assert not is_open(tmp_path, "add mb4")


def test_a_run_that_fails_while_it_only_looks_was_not_begun(tmp_path: Path) -> None:
    """So a version with a typo is not that of an unfinished run."""

    class Refused:
        def run(self, command: Command) -> str:
            raise CommandFailed(command.argv, 100, "E: Version '4' was not found")

    for looks, is_left in ((True, False), (False, True)):
        step = Step(name="simulate", commands=(Command(("false",)),), only_looks=looks)
        journal = begun(tmp_path, "upgrade mb2", "mb2")
        with pytest.raises(PlanFailed):
            runner.carry_out(Plan(name="upgrade mb2", steps=(step,)), Refused(), journal, say=print)
        assert is_open(tmp_path, "upgrade mb2") is is_left


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = begun(tmp_path, "add mb4", "mb4")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*add.mb4\.jsonl'"):
        journal.record("one", 0.1)
    with pytest.raises(OSError, match=r"No space left on device: '.*/inventory\.toml'"):
        write_whole(tmp_path / "inventory.toml", "x")
    assert not list(tmp_path.glob("*inventory*"))


def test_a_run_of_which_nothing_was_kept_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "add+mb4.jsonl").touch()
    assert open_runs(tmp_path, but="remove mb2") == []


def test_a_journal_of_another_version_is_not_taken_up(tmp_path: Path) -> None:
    (tmp_path / "add+mb4.jsonl").write_text('{"facts": {}, "at": "2026-08-02T10:00:00+0000"}\n')
    with pytest.raises(JournalUnreadable, match="another version of this kit"):
        Journal(tmp_path, "add mb4")


def test_unfinished_runs_of_other_playbooks_are_known_with_what_they_change(tmp_path: Path) -> None:
    begun(tmp_path, "add mb4", "mb4")
    begun(tmp_path, "remove mb2", "mb2")
    begun(tmp_path, "remove mb1", "mb1").finish()
    (other,) = open_runs(tmp_path, but="remove mb2")
    assert other.name == "add mb4"
    assert other.concerns(frozenset({"mb4", "mb1"}))
    assert not other.concerns(frozenset({"mb1"}))
    assert open_runs(tmp_path / "none", but="") == []


def test_each_plan_has_a_journal_of_its_own(tmp_path: Path) -> None:
    begun(tmp_path, "restart mb1 mb2")
    assert not Journal(tmp_path, "restart mb1-mb2").is_resumed
    assert Journal(tmp_path, "restart mb1 mb2").is_resumed


def test_a_seal_is_of_one_step_of_one_run(tmp_path: Path) -> None:
    journal = begun(tmp_path, "remove mb2")
    journal.seal("stop broker mb2", "a 1\nb 2\n")
    assert Journal(tmp_path, "remove mb2").sealed("stop broker mb2") == "a 1\nb 2\n"
    assert journal.sealed("stop the agent of mb2") is None
    assert Journal(tmp_path, "remove mb22").sealed("stop broker mb2") is None
