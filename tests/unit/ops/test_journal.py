from __future__ import annotations

from pathlib import Path

from ops.journal import Journal, unfinished


def test_an_unfinished_run_is_taken_up(tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal", "add mb4")
    assert not first.is_resumed
    first.record("make node mb4", 0.1)
    first.record("start broker mb4", 5.0)
    second = Journal(tmp_path / "journal", "add mb4")
    assert second.is_resumed
    assert second.done == ("make node mb4", "start broker mb4")
    assert not Journal(tmp_path / "journal", "add mb5").is_resumed


def test_a_finished_run_is_kept_and_not_taken_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "add mb4")
    journal.record("make node mb4", 0.1)
    journal.finish()
    assert Journal(tmp_path, "add mb4").done == ()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_line_that_a_crash_cut_off_does_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "add mb4")
    journal.record("one", 0.1)
    journal.record("two", 0.1)
    file = tmp_path / "add-mb4.jsonl"
    file.write_text(file.read_text()[:-5])
    assert Journal(tmp_path, "add mb4").done == ("one",)


def test_runs_of_other_playbooks_that_are_not_finished_are_known(tmp_path: Path) -> None:
    for name in ("add mb4", "remove mb2", "remove mb1"):
        Journal(tmp_path, name).begin({"address": "x"})
    Journal(tmp_path, "remove mb1").finish()
    assert unfinished(tmp_path, but="remove mb2") == ["add-mb4"]
    assert unfinished(tmp_path / "none", but="") == []
