from __future__ import annotations

from ops.errors import TAIL_LINES, CommandFailed, LockHeld, PlanFailed, tail


def test_a_tail_is_one_line_of_what_was_said_last() -> None:
    assert tail("a\n\n  b  \n") == "a | b"
    assert tail("") == "no output"
    assert tail("\n".join(map(str, range(100)))).startswith(str(100 - TAIL_LINES))


def test_errors_say_where_and_how() -> None:
    failed = CommandFailed(("systemctl", "start", "x"), 5, "no unit x\n", "mb4.example")
    assert str(failed) == "systemctl on mb4.example: exit code 5: no unit x"
    assert "did not end in time" in str(CommandFailed(("sleep",), -1, ""))
    assert str(PlanFailed("start broker mb4", "no")) == "step 'start broker mb4': no"
    assert str(LockHeld("ann", "noon")) == "ann is changing this cluster since noon"
