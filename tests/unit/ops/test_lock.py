from __future__ import annotations

from pathlib import Path

import pytest

from ops import lock
from ops.errors import LockHeld


def test_a_second_change_is_told_who_is_at_it(tmp_path: Path) -> None:
    with (
        lock.held(tmp_path / "lock", "add mb4"),
        pytest.raises(LockHeld, match=r"pid \d+, 'add mb4' is changing this cluster since"),
        lock.held(tmp_path / "lock", "remove mb1"),
    ):
        pass


def test_a_lock_that_was_let_go_is_free(tmp_path: Path) -> None:
    for _ in range(2):
        with lock.held(tmp_path / "lock", "add mb4"):
            pass
