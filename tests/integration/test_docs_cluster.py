"""The commands of README, docs and examples for a cluster, run on one: in a shell, Python as programs.

Blocks of a page are run in their order, in one folder that holds the page's files; those of an example in
a copy of its folder, and with a free port in place of `PORT`.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.processes import free_port
from messagebus import BusConfig, Secret
from messagebus.admin import count_subscriptions, delete_subscriptions
from messagebus.commands.exits import Exit
from ops.local.cluster import LocalCluster
from tests.support.documents import EXAMPLES, ROOT, Block, blocks_of, files_of, pages
from tests.support.eventually import eventually

# Limit of one block; all of them together take seconds, but for a report by Spark.
WITHIN_S = 300
# The port of web services, in the documents.
PORT = "8000"
# Exit codes of commands that end by the signal that stops them; 0 of all others.
ENDS = {"uvicorn": -signal.SIGTERM, "to-file": Exit.TERMINATED}
README = ROOT / "README.md"
# It kills parts of a cluster, and has tests of its own.
OPERATIONS = ROOT / "docs" / "OPERATIONS.md"
PAGES = [
    page
    for page in pages()
    if page != OPERATIONS and any("cluster" in block.marks for block in blocks_of(page))
]


@pytest.fixture
def env(cluster: LocalCluster) -> Iterator[dict[str, str]]:
    """The environment after the `export` lines of `make up`; all declarations are deleted afterwards."""
    plain = {key: each for key, each in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    yield {
        **plain,
        **cluster.client_env(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    bus = BusConfig.from_env(cluster.client_env())
    token = Secret(cluster.layout.secret("token").read_text().strip())
    names = sorted({each.name for each in count_subscriptions(bus).counts})
    if names:
        delete_subscriptions(bus, names, token=token)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_works_on_a_cluster(page: Path, env: dict[str, str], tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if "cluster" in block.marks]
    if page.is_relative_to(EXAMPLES):
        unwanted = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(page.parent, tmp_path, ignore=unwanted, dirs_exist_ok=True)
        port = str(free_port())
        blocks = [dataclasses.replace(each, text=each.text.replace(PORT, port)) for each in blocks]
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text)
    with ExitStack() as running:
        for block in blocks:
            if "in the background" in block.marks:
                running.close()  # one at a time
                running.enter_context(in_the_background(block, env, tmp_path))
            elif "beside it" in block.marks:
                running.enter_context(in_the_background(block, env, tmp_path))
            elif "until" in block.marks:
                run_until(block, env, tmp_path)
            else:
                run(block, env, tmp_path)


def test_the_readme_s_clients_work_on_a_cluster(env: dict[str, str], tmp_path: Path) -> None:
    """Publish and consume, with an end to the loop."""
    (program,) = (each.text for each in blocks_of(README) if "consumer.ack" in each.text)
    page = Block(README, 1, "python", f"{program}        break\n")
    assert "'number': 17" in run(page, env, tmp_path)


def run(block: Block, env: dict[str, str], folder: Path) -> str:
    """Run it and return its output."""
    ended = completed(block, env, folder)
    assert ended.returncode == 0, f"{block.name}:\n{ended.stdout}"
    return ended.stdout


def completed(block: Block, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whatever that is."""
    if block.language == "python":
        argv = [sys.executable, "-W", "error", "-c", block.text]
    else:
        argv = ["bash", "-euo", "pipefail", "-c", block.text]
    return subprocess.run(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def run_until(block: Block, env: dict[str, str], folder: Path) -> None:
    said = [""]

    def says_it() -> bool:
        said[0] = completed(block, env, folder).stdout
        return block.marks["cluster"] in said[0]

    try:
        eventually(says_it, within_s=WITHIN_S)
    except AssertionError:
        pytest.fail(f"{block.name}: {block.marks['cluster']!r} wanted:\n{said[0]}")


@contextmanager
def in_the_background(block: Block, env: dict[str, str], folder: Path) -> Iterator[None]:
    """Run one command, which must end well when it is asked to."""
    log = folder / f"background-{block.line}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            shlex.split(block.text), cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        eventually(lambda: is_consuming(process, env), within_s=WITHIN_S, what=block.name)
        yield
        process.send_signal(signal.SIGTERM)
        wanted = next((code for name, code in ENDS.items() if name in block.text.split()), 0)
        assert process.wait(WITHIN_S) == wanted, f"{block.name}:\n{log.read_text()}"
    finally:
        process.kill()
        process.wait(WITHIN_S)


def is_consuming(process: subprocess.Popen[bytes], env: dict[str, str]) -> bool:
    """Return whether a consumer is attached, or the process has ended."""
    ours = {key: each for key, each in env.items() if key.startswith("MESSAGEBUS_")}
    counts = count_subscriptions(BusConfig.from_env(ours)).counts
    return any(each.consumers for each in counts) or process.poll() is not None
