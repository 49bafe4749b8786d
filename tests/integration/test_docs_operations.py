"""The commands of docs/OPERATIONS.md, in its order, on a cluster whose parts fail where the page says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.documents import ROOT, Block, blocks_of
from tests.support.eventually import FACTOR, eventually

PAGE = ROOT / "docs" / "OPERATIONS.md"
WITHIN_S = 400
HOW = ("cluster", "hardware", "elsewhere")


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> LocalCluster:
    """A cluster of its own: parts of it are killed."""
    return make_cluster(3)


@pytest.fixture
def env(cluster: LocalCluster) -> dict[str, str]:
    plain = {key: each for key, each in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    return {
        **plain,
        **cluster.client_env(),
        "MESSAGEBUS_INVENTORY": str(cluster.inventory),
        "MESSAGEBUS_LOCAL_DIR": str(cluster.dir),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def commands() -> list[Block]:
    return [block for block in blocks_of(PAGE) if block.language == "sh"]


def test_every_command_is_run_or_says_why_not() -> None:
    assert [block.name for block in commands() if not set(HOW) & set(block.marks)] == []


def test_what_is_run_elsewhere_is_run_there() -> None:
    tests = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    named = {block.marks["elsewhere"] for block in commands() if "elsewhere" in block.marks}
    assert named - tests == set()


# Each command has its own limit.
@pytest.mark.timeout(3600)
def test_the_page_works_from_its_beginning_to_its_end(env: dict[str, str], tmp_path: Path) -> None:
    for block in commands():
        if "cluster" not in block.marks:
            continue
        if before := block.marks.get("first"):
            assert shell(before, env, tmp_path).returncode == 0, block.name
        if "until" in block.marks:
            until(block, env, tmp_path)
            continue
        done = shell(block.text, env, tmp_path)
        codes = [int(mark.split()[1]) for mark in block.marks if mark.startswith("exit ")]
        wanted = codes[0] if codes else 0
        assert done.returncode == wanted, f"{block.name}:\n{done.stdout}"


def until(block: Block, env: dict[str, str], folder: Path) -> None:
    said = [""]

    def says_it() -> bool:
        said[0] = shell(block.text, env, folder).stdout
        return block.marks["cluster"] in said[0]

    try:
        eventually(says_it, within_s=WITHIN_S)
    except AssertionError:
        pytest.fail(f"{block.name}: {block.marks['cluster']!r} wanted:\n{said[0]}")


def shell(text: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S * FACTOR,
        check=False,
    )
