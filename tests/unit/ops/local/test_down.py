"""`down` and `up` of a local cluster, given a folder or settings that are not the cluster's."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ops.errors import LocalFault
from ops.local.cli import local
from ops.local.cluster import LocalCluster
from ops.local.layout import Layout, ServerChoice


def run(*words: str) -> Result:
    return CliRunner().invoke(local, [*words], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with the files of a stopped cluster."""
    layout = Layout(
        dir=tmp_path / "c",
        numbers=(1,),
        network="127.0.77",
        choices=(ServerChoice("redis", 1, "always"),),
    )
    for each in ("nodes", "journal", "haproxy"):
        (layout.dir / each).mkdir(parents=True)
    (layout.dir / "ops.lock").touch()
    layout.state_file.write_text(layout.to_json())
    return layout.dir


def test_down_says_which_cluster_it_stopped_or_removed(folder: Path) -> None:
    done = run("down", "--dir", str(folder))
    assert done.output == f"stopped the cluster in {folder}; its data stay\n"
    done = run("down", "--wipe", "--dir", str(folder))
    assert done.output == f"removed the cluster in {folder}, with its data\n"
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "what"), [(["down"], "stopped"), (["down", "--wipe"], "removed")]
)
def test_down_without_a_cluster_says_so_and_makes_nothing(
    tmp_path: Path, words: list[str], what: str
) -> None:
    done = run(*words, "--dir", str(tmp_path / "c"))
    assert done.stderr == f"no cluster in {tmp_path / 'c'}: nothing was {what}\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("has_lock", [False, True], ids=["no lock", "a lock"])
def test_a_wipe_leaves_a_folder_without_a_cluster_as_it_is(tmp_path: Path, has_lock: bool) -> None:
    """Operators have an inventory and secrets in a folder of their own: their names are ours, too."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "admin").write_text("x")
    (tmp_path / "inventory.toml").write_text("x")
    if has_lock:
        (tmp_path / "lock").touch()
    assert not LocalCluster(tmp_path).down(wipe=True)
    assert sorted(each.name for each in tmp_path.rglob("*")) == [
        "admin",
        "inventory.toml",
        "secrets",
    ]


def test_up_refuses_settings_that_the_cluster_of_the_folder_does_not_have(folder: Path) -> None:
    cluster = LocalCluster(
        folder, network="127.0.1", balancers=2, tls=True, choices=[ServerChoice("redis")]
    )
    with pytest.raises(LocalFault) as fault:
        cluster.up()
    assert str(fault.value) == (
        f"the cluster in {folder} has no TLS, its addresses in 127.0.77, 1 balancer, redis:always; "
        "take another folder"
    )


@pytest.mark.parametrize("is_known", [True, False], ids=["a stopped cluster", "a new one"])
def test_a_server_that_could_not_be_started_is_not_asked_for_by_the_next_start(
    folder: Path, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalCluster, layout: Layout, _launched: list[str]) -> None:
        self._folder.save(layout)
        raise LocalFault("prometheus is not installed")

    if not is_known:
        LocalCluster(folder).down(wipe=True)
    before = LocalCluster(folder).layout.choices if is_known else ()
    monkeypatch.setattr(LocalCluster, "_bring_up", refuse)
    with pytest.raises(LocalFault, match="not installed"):
        LocalCluster(folder, 1, choices=[ServerChoice("prometheus")]).up()
    assert LocalCluster(folder).layout.choices == before


def test_what_acts_on_one_part_says_what_is_so_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("start", "stop", "kill"):
        monkeypatch.setattr(LocalCluster, method, lambda *_, **__: None)
    where = ("--dir", str(folder))
    assert run("start", "mb1", *where).stdout == "mb1 answers\n"
    assert run("stop", "mb1", *where).stdout == "mb1 does not run\n"
    assert run("kill", "mb1", *where).stdout == "mb1 has ended\n"
    assert run("kill", "mb1", "--signal", "STOP", *where).stdout == "mb1 stands still\n"
    assert run("kill", "mb1", "--signal", "CONT", *where).stdout == "mb1 goes on\n"


def test_up_prints_where_every_kit_finds_the_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalCluster, "up", lambda _self: None)
    printed = run("up", "--dir", str(folder)).stdout.splitlines()
    assert f"export MESSAGEBUS_INVENTORY={folder / 'inventory.toml'}" in printed
    assert f"export MESSAGEBUS_LOCAL_DIR={folder}" in printed
