from __future__ import annotations

from bench.run.told import Told, faults_of


def test_a_table_its_notes_and_its_faults_are_lines() -> None:
    told = Told(
        head=("system", "rate"),
        rows=[("ours", "10")],
        title="by turns",
        notes=["word " * 30],
        meant={"ours": "fsynced"},
        faults=["ours: late"],
    )
    lines = told.lines(80)
    assert lines[:3] == ["by turns", "system  rate", "ours      10"]
    assert lines[-3:] == ["What a confirm means:", "  ours: fsynced", "  ! ours: late"]
    assert max(map(len, lines)) <= 80


def test_every_fault_has_the_name_of_its_run() -> None:
    assert faults_of({"a": {"faults": []}, "b": {"faults": ["x", "y"]}}) == ["b: x", "b: y"]
