from __future__ import annotations

import sys

import pytest

from bench.errors import BenchError
from bench.figures.measure.watched import asking, watched


def test_a_command_is_watched_with_all_that_it_starts() -> None:
    work = "sum(range(10**7)); print('done')"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    cost = watched([sys.executable, "-c", inner])
    assert cost.said == "done\n"
    assert cost.memory_mib > 5
    assert cost.cpu_s > 0


def test_a_command_gets_its_input_and_may_say_much() -> None:
    echo = "import sys; print(sys.stdin.read() * 50_000)"
    assert watched([sys.executable, "-c", echo], asked="audit").said == "audit" * 50_000 + "\n"


def test_a_command_that_fails_says_its_last_line() -> None:
    with pytest.raises(BenchError, match="no such thing"):
        watched([sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert watched([sys.executable, "-c", "raise SystemExit(3)"], may_fail=True).said == ""


ECHO = """
import sys
for line in sys.stdin:
    if line == "work\\n":
        sum(range(10**7))
    if line == "end\\n":
        raise SystemExit("had enough")
    print([line.strip()], flush=True) if line != "odd\\n" else None
""".replace("[line.strip()]", "'[\"' + line.strip() + '\"]'")


def test_each_answer_comes_with_what_it_cost() -> None:
    with asking([sys.executable, "-c", ECHO]) as asked:
        idle, busy = asked.ask("rest"), asked.ask("work")
    assert (idle.found, busy.found) == (["rest"], ["work"])
    assert busy.cpu_s > idle.cpu_s


def test_one_that_ends_says_its_last_words() -> None:
    with pytest.raises(BenchError, match="had enough"), asking([sys.executable, "-c", ECHO]) as one:
        one.ask("end")
