"""tests/mutants: every planted fault can be planted, so none is passed over when the source moves on."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "mutants").glob("*.toml"))
MACHINES = sorted(
    path.stem for path in (ROOT / "messagebus" / "core").glob("*.py") if path.stem != "__init__"
)
FAULTS_MIN = 3


def faults(path: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(path.read_text())["mutant"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_replaced_stands_once_in_its_file(path: Path) -> None:
    stale = [
        (fault["why"], count)
        for fault in faults(path)
        if (count := (ROOT / fault["file"]).read_text().count(fault["find"])) != 1
    ]
    assert stale == [], "adapt `find` to the source, so that the fault is planted again"


def test_every_machine_has_its_planted_faults() -> None:
    planted = Counter(Path(fault["file"]).stem for path in FILES for fault in faults(path))
    assert {name for name in MACHINES if planted[name] < FAULTS_MIN} == set()
