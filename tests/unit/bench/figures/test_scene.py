from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.figures.scene import Group, Scene, Stage, repeat_command


def test_a_quick_run_does_a_tenth_but_not_less_than_the_least() -> None:
    quick = Scene(Path(), print, quick=True)
    assert quick.part(50) == 5
    assert quick.part(50, 20) == 20
    assert Scene(Path(), print).part(50) == 50


def test_a_group_without_brokers_has_no_cluster(tmp_path: Path) -> None:
    group = Group("client.x", 0, "none", lambda scene: iter(()))
    with Stage(tmp_path, "127.0.9", print).open() as stage:
        scene = stage.scene(group, Scene(tmp_path, print))
        assert scene.folder == tmp_path / "client.x"
        assert scene.folder.is_dir()
        with pytest.raises(BenchError, match="no cluster"):
            _ = scene.cluster


def test_the_command_that_repeats_names_the_group() -> None:
    assert (
        repeat_command("client.publish", 5) == "python -m bench figures client.publish --repeat 5"
    )
    assert repeat_command("way.kill") == "python -m bench figures way.kill"
