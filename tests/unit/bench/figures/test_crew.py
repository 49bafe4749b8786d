import itertools

import pytest

from bench.errors import BenchError
from bench.figures.crew import CHECKOUT, wait_until


def test_waiting_ends_with_the_condition() -> None:
    answers = itertools.chain([True], itertools.repeat(False))
    wait_until(lambda: next(answers), within_s=0, what="something")


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(BenchError, match="not within 0 s: all load processes running"):
        wait_until(lambda: False, within_s=0, what="all load processes running")


def test_processes_run_in_the_checkout() -> None:
    assert (CHECKOUT / "pyproject.toml").is_file()
