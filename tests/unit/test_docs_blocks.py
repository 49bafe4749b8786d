"""Every code block of README and docs is run, parsed or read; none is passed over in silence."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import messagebus
from messagebus import BusConfig, ConfigError, ConsumerConfig, PublisherConfig
from messagebus.testing import MemoryBus
from tests.support.documents import LANGUAGES, ROOT, Block, blocks_of, files_of, pages
from tests.support.documents_memory import Program, lead_into_memory
from tests.support.documents_shell import faults_of

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
WITHIN_S = 300
# By its entry point where the package was installed since it has one; twice would be an error.
INSTALLED = any(each.name == "messagebus" for each in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "messagebus.testing.plugin")
# Only ever smaller.
NOT_RUN_MAX = 7


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def wanted(language: str) -> list[Block]:
    return [b for b in BLOCKS if b.language == language and "not run" not in b.marks]


def in_memory(page: Path) -> list[Block]:
    return [b for b in wanted("python") if b.page == page and "cluster" not in b.marks]


def run_pytest() -> str:
    """Run pytest over the files of a page, in the working directory; return its output."""
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN],
        env={**os.environ, "PYTHONPATH": str(Path(messagebus.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    return told.stdout + told.stderr


def test_every_block_has_a_language_that_is_tested() -> None:
    strange = [block for block in BLOCKS if block.language not in LANGUAGES]
    assert [(block.name, block.language) for block in strange] == []


def test_what_is_not_run_has_a_reason_and_is_little() -> None:
    left_out = {block.name: block.marks["not run"] for block in BLOCKS if "not run" in block.marks}
    assert all(len(reason) > 10 for reason in left_out.values()), left_out
    assert len(left_out) <= NOT_RUN_MAX, left_out


def test_there_is_something_to_run() -> None:
    assert len(wanted("python")) > 40
    assert len(wanted("sh")) > 15


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda block: block.name
)
def test_python_is_python_also_where_it_is_not_run(block: Block) -> None:
    compile(block.text, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", [page for page in PAGES if in_memory(page)], ids=named)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryBus(brokers=2)
    lead_into_memory(monkeypatch, memory)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text)
    Program(page, memory=memory, run_pytest=run_pytest).run(in_memory(page))


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "sh"], ids=lambda block: block.name
)
def test_the_commands_of_a_block_exist_with_these_options(block: Block) -> None:
    assert faults_of(block) == []


@pytest.mark.parametrize("block", wanted("toml"), ids=lambda block: block.name)
def test_toml_is_toml_and_settings_are_known(block: Block, tmp_path: Path) -> None:
    tables = tomllib.loads(block.text).keys()
    if not tables & {"bus", "publisher", "consumer"} or "listen" in tables:
        return  # with an address it is a gateway's: test_gateway_docs.py reads it
    (tmp_path / "settings.toml").write_text(block.text)
    try:
        for kind in (BusConfig, PublisherConfig, ConsumerConfig):
            kind.from_file(tmp_path / "settings.toml")
    except ConfigError as fault:  # the files that it names are not on this machine
        told = str(fault).partition("settings.toml: ")[2].split("; ")
        assert [each for each in told if "No such file" not in each] == []


@pytest.mark.parametrize("block", wanted("json"), ids=lambda block: block.name)
def test_each_line_of_json_is_json(block: Block) -> None:
    for line in block.text.splitlines():
        json.loads(line)
