"""Shares of the suite that run on other versions."""

from __future__ import annotations

from pathlib import Path

from tests.versions import CHECKOUT, NEWEST, OTHERS, SHARES, shares


def test_all_of_contract_and_fault_has_its_turn() -> None:
    named = {path for share in SHARES for path in share if "::" not in path}
    files = [*CHECKOUT.glob("tests/contract/test_*.py"), *CHECKOUT.glob("tests/fault/test_*.py")]
    assert {str(file.relative_to(CHECKOUT)) for file in files} <= named
    assert all(Path(CHECKOUT / path).is_file() for path in named)


def test_the_newest_brokers_are_tested_every_day_and_each_release_has_all_in_turn() -> None:
    days = len(SHARES) * (1 + len(OTHERS))
    for name in (NEWEST, *OTHERS):
        seen = {
            path
            for day in range(1, days + 1)
            for s in shares(day)
            if s.release.name == name and not s.python
            for path in s.paths
        }
        assert seen >= {path for share in SHARES for path in share}
    for day in range(1, days + 1):
        (newest,) = [s for s in shares(day) if s.release.name == NEWEST and not s.python]
        assert "tests/fault/test_rights_and_names.py" in newest.paths
        assert any(
            "balancers_ask_for_the_gate" in path or "test_topics" in path for path in newest.paths
        )
        assert len(newest.paths) == len(set(newest.paths))
