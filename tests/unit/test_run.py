"""The runner of the suite: its verdict, its parts, and what it tells of starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.local.cluster import LocalCluster
from tests.run import CHECKOUT, LATE_MAX, _paths, _verdict, _words_of
from tests.support import starts


def test_more_than_some_tests_that_pass_at_their_second_try_only_fail_the_run() -> None:
    some = [f"tests/fault/test_{n}.py::test" for n in range(LATE_MAX)]
    assert _verdict([0, 0], []) == _verdict([0, 0], some) == 0
    assert _verdict([0, 0], [*some, "one more"]) == 1
    assert _verdict([0, -2], [*some, "one more"]) == 2
    assert _words_of([]) == []
    assert _words_of(some) == [f"2 at the second try only: {' '.join(some)}"]
    assert "more than 2: " in _words_of([*some, "one more"])[0]


def test_every_file_of_tests_is_in_one_part() -> None:
    taken: list[Path] = []
    for paths in _paths().values():
        ignored = {CHECKOUT / path.removeprefix("--ignore=") for path in paths if path[0] == "-"}
        for path in (CHECKOUT / each for each in paths if each[0] != "-"):
            assert path.exists()
            files = [path] if path.is_file() else path.rglob("test_*.py")
            taken += [file for file in files if file not in ignored]
    assert sorted(taken) == sorted((CHECKOUT / "tests").rglob("test_*.py"))


def test_starts_are_summed_up_also_those_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_cluster: LocalCluster, _name: str) -> None:
        raise OSError("no port")

    monkeypatch.setattr(LocalCluster, "up", lambda _cluster: None)
    monkeypatch.setattr(LocalCluster, "start", fail)
    monkeypatch.setenv(starts.FILE, str(tmp_path / "starts"))
    starts.note_starts()
    cluster = LocalCluster(tmp_path / "c")
    cluster.up()
    for _ in range(2):
        with pytest.raises(OSError, match="no port"):
            cluster.start("mb1")
    noted = (tmp_path / "starts").read_text()
    (tmp_path / "starts").write_text(f"{noted}up 2.0\n")
    assert starts.summed(tmp_path / "starts") == (
        "clusters brought up: 2, 2 s; brokers and agents started: 2, 0 s"
    )
    assert starts.summed(tmp_path / "none").startswith("clusters brought up: 0, 0 s")
