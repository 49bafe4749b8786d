from __future__ import annotations

from pathlib import Path

import pytest

from ops.errors import JournalUnreadable
from ops.run.journal import Journal, abandon, open_runs


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
    assert abandon(tmp_path, "add mb4")
    assert not Journal(tmp_path, "add mb4").is_resumed
    assert not abandon(tmp_path, "add mb4")


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
