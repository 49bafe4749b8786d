from __future__ import annotations

from collections.abc import Callable

import pytest

from ops import fab


@pytest.mark.parametrize(
    ("task", "ran"),
    [
        (lambda: fab.add.body(None, "mb4", dry_run=True), ["add", "mb4", "--dry-run"]),
        (lambda: fab.remove.body(None, "mb2", yes=True), ["remove", "mb2", "--yes"]),
        (lambda: fab.local.body(None, "up"), ["local", "up"]),
    ],
)
def test_a_task_is_the_command_of_its_name(
    task: Callable[[], None], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def main(argv: list[str]) -> int:
        seen.append(argv)
        return 3

    monkeypatch.setattr(fab, "main", main)
    with pytest.raises(SystemExit) as ended:
        task()
    assert ended.value.code == 3
    assert seen == [ran]
