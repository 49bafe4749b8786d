from __future__ import annotations

import sys

import pytest

from bench.errors import BenchError
from bench.figures.measure.audit import agree, watched


def test_two_audits_agree_to_the_row_or_it_is_said() -> None:
    ours = {"verdicts": {"ok": 5, "lost": 1, "altered": 0}, "late": [{"message_id": "b"}]}
    assert agree(ours, {"verdicts": {"ok": 5, "lost": 1}, "late": ["b"]}) == []
    assert len(agree(ours, {"verdicts": {"ok": 6}, "late": []})) == 2


def test_a_command_is_watched_with_all_that_it_starts() -> None:
    work = "sum(range(10**7)); print('done')"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    cost = watched([sys.executable, "-c", inner])
    assert cost.said == "done\n"
    assert cost.memory_mib > 5
    assert cost.cpu_s > 0


def test_a_command_that_fails_says_its_last_line() -> None:
    with pytest.raises(BenchError, match="no such thing"):
        watched([sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert watched([sys.executable, "-c", "raise SystemExit(3)"], may_fail=True).said == ""
