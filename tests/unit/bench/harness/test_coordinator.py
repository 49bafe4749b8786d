from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import InputInvalid
from bench.harness.coordinator import made, made_empty


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    assert made_empty(tmp_path / "a" / "b").is_dir()
    assert made_empty(tmp_path / "a" / "b").is_dir()
    assert made(tmp_path / "a").is_dir()


def test_what_a_run_wrote_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(InputInvalid, match="is not empty"):
        made_empty(tmp_path)


def test_a_place_that_cannot_be_a_folder_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below", Path("/proc/x")):
        with pytest.raises(InputInvalid, match=f"{place}: no folder can be made: "):
            made(place)
