from __future__ import annotations

import sys

import pytest

from bench.errors import BenchError
from bench.figures.measure.watched import watched


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
