"""The supervisor's judgement of its children. It is run in tests/integration/test_worker.py."""

from __future__ import annotations

import sys

import pytest

from messagebus.worker.supervisor import child_command, how_it_ended, is_polite, together


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1, "ended with exit code 1"),
        (0, "ended with exit code 0"),
        (-9, "was ended by SIGKILL"),
        (-250, "was ended by signal 250"),
    ],
)
def test_how_a_child_ended(code: int, told: str) -> None:
    assert how_it_ended(code) == told


@pytest.mark.parametrize(
    ("code", "heard", "polite"),
    [
        (0, True, True),
        (1, True, False),
        *((code, False, True) for code in (-15, -2, 130)),
        *((code, True, False) for code in (-15, -2, 130)),
        (-9, False, False),
    ],
)
def test_a_child_may_be_ended_by_the_signal_before_it_hears_it(
    code: int, heard: bool, polite: bool
) -> None:
    assert is_polite(code, heard=heard) is polite


def test_all_children_must_be_ready() -> None:
    ready, starting = {"ready": True}, {"ready": False}
    assert together({"worker 1": ready, "worker 2": ready}, False)["ready"]
    assert not together({"worker 1": ready, "worker 2": starting}, False)["ready"]
    stopping = together({"worker 1": ready}, True)
    assert (stopping["ready"], stopping["status"]) == (False, "stopping")


def test_a_child_is_the_same_command_for_one_process() -> None:
    assert child_command("shop:app", grace_s=2.5, verbose=True, form="json") == [
        sys.executable,
        *(
            "-m",
            "messagebus",
            "worker",
            "shop:app",
            "--grace-s",
            "2.5",
            "--log",
            "json",
            "--verbose",
        ),
    ]
