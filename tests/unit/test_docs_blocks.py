"""Every code block of README, docs and examples is run, parsed or read; none is passed over in silence.

The Python blocks of a page are run as one program, on brokers in memory: every client leads to one bus,
which the page's hidden code finds as `memory`. A program that would wait for messages for ever ends
instead: a receive without a time limit, when no message is left, lets delays pass, and is stopped when
none comes then either. Shell blocks are not run: our own commands are parsed by their own parsers, targets
of `make` and extras of `pip install` are looked up; other commands are those of every shell.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest

import messagebus
from bench.cli import bench as bench_cli
from clients.conform.cli import conform as conform_cli
from consumer_lists.__main__ import cli as consumer_lists_cli
from lb.__main__ import cli as lb_cli
from messagebus import (
    App,
    AsyncConsumer,
    BusConfig,
    ConfigError,
    Consumer,
    ConsumerConfig,
    Delivery,
    PublisherConfig,
    aio,
    consumer,
    publisher,
    replay,
)
from messagebus.__main__ import cli as messagebus_cli
from messagebus.admin import directory
from messagebus.destination import DELAY_STEPS_MS
from messagebus.testing import MemoryBus
from ops.__main__ import cli as ops_cli
from spark.__main__ import jobs as spark_jobs
from tests.support.documents import EXAMPLES, LANGUAGES, ROOT, Block, blocks_of, files_of, pages

# Time for which a receiver looks for messages that another thread is about to publish; nothing else depends
# on it.
LOOK_S = 0.05


class Program:
    """One page: its blocks share their names, and those that are given."""

    def __init__(self, page: Path, **names: Any) -> None:
        self._module = types.ModuleType(f"page_{page.stem.replace('-', '_').lower()}")
        vars(self._module).update(names)
        self._printed = ""

    def run(self, blocks: Iterable[Block]) -> None:
        """Run the page. Raises what the page raises."""
        sys.modules[self._module.__name__] = self._module
        try:
            with asyncio.Runner() as runner:
                for block in blocks:
                    if block.language == "text":
                        assert self._printed == block.text, block.name
                        continue
                    with redirect_stdout(io.StringIO()) as printed:
                        self._run(runner, block)
                    self._printed = printed.getvalue()
        finally:
            del sys.modules[self._module.__name__]

    def _run(self, runner: asyncio.Runner, block: Block) -> None:
        for text, place in (
            (block.marks.get("first", ""), f"{block.name} first"),
            (block.padded, str(block.page)),
            (block.marks.get("then", ""), f"{block.name} then"),
        ):
            code = compile(text, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, vars(self._module)))
            else:
                exec(code, vars(self._module))


def lead_into_memory(monkeypatch: pytest.MonkeyPatch, bus: MemoryBus) -> None:
    """Have every client and every tool of the directory use this bus, until the patch is undone."""
    wire = bus._wire
    for module in (publisher, consumer, aio, replay):
        monkeypatch.setattr(module, "AmqpWire", lambda _config: wire)
    monkeypatch.setattr(directory, "topology_for", lambda _config: wire.topology())
    monkeypatch.setattr(Consumer, "_receive", _ending(Consumer._receive))
    running: set[App] = set()
    monkeypatch.setattr(App, "run", _noted(App.run, running))
    monkeypatch.setattr(AsyncConsumer, "_receive", _ending_async(AsyncConsumer._receive, running))


def _noted(run: Any, running: set[App]) -> Any:
    async def run_noted(self: App, **how: Any) -> int:
        running.add(self)
        try:
            return await run(self, **how)  # type: ignore[no-any-return]
        finally:
            running.discard(self)

    return run_noted


def _ending(receive: Any) -> Any:
    def receive_or_end(self: Consumer, timeout_s: float | None = None) -> Delivery | None:
        if timeout_s is not None:
            return receive(self, timeout_s)  # type: ignore[no-any-return]
        while (found := receive(self, LOOK_S)) is None and _goes_on(self):
            pass
        if found is None:
            self.stop()
        return found  # type: ignore[no-any-return]

    return receive_or_end


def _ending_async(receive: Any, running: set[App]) -> Any:
    async def receive_or_end(
        self: AsyncConsumer, timeout_s: float | None = None
    ) -> Delivery | None:
        if timeout_s is not None:
            return await receive(self, timeout_s)  # type: ignore[no-any-return]
        while (found := await receive(self, LOOK_S)) is None and _goes_on(self):
            pass
        if found is None and running:  # an app ends its consumers itself
            for app in running:
                app.request_stop()
            return await receive(self)  # type: ignore[no-any-return]
        if found is None:
            await self.stop()
        return found  # type: ignore[no-any-return]

    return receive_or_end


def _goes_on(client: Consumer | AsyncConsumer) -> bool:
    """Return whether a message may still come; if all are only delayed, let time pass."""
    brokers = getattr(client._wire, "_brokers")  # noqa: B009 # of memory, not of the protocol
    if client.status.value != "running":
        return False
    if brokers.open_work():
        return True
    if not brokers.delayed():
        return False
    brokers.advance(DELAY_STEPS_MS[-1])
    return True


OURS: dict[str, click.Command] = {"messagebus": messagebus_cli}
KITS: dict[str, click.Command] = {
    "ops": ops_cli,
    "lb": lb_cli,
    "consumer_lists": consumer_lists_cli,
    "bench": bench_cli,
    "spark": spark_jobs,
    "clients.conform": conform_cli,
}
OTHERS = {
    "cd",
    "curl",
    "echo",
    "pytest",
    "uvicorn",
    "seq",
    "sort",
    "tail",
    "head",
    "kill",
    "uniq",
    "set",
    "export",
    ".",
    "mkdir",
    "umask",
}
# On real hosts, and tools of others.
OF_HOSTS = {
    *("df", "ip", "journalctl", "openssl", "podman-compose", "promtool", "rabbitmqctl", "ssh"),
    "systemctl",
}
_EVAL = re.compile(r'eval "\$\((.*)\)"')
_OPERATORS = {"|", "&&", ";", ">", ">>", "<", "&", "2>"}


def faults_of(block: Block) -> list[str]:
    """Return the faults of its commands."""
    return [
        f"{' '.join(words)}: {fault}"
        for words in _commands(block.text)
        if (fault := _fault(words, block))
    ]


def _commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        line = _EVAL.sub(r"\1", line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        takes_file = False
        for word in lexer:
            if takes_file:
                takes_file = False
            elif word in _OPERATORS:
                takes_file = word in (">", ">>", "<", "2>")
                if not takes_file:
                    yield from [command] if command else []
                    command = []
            elif command or not re.fullmatch(r"[A-Z_]+=.*", word):
                command.append(word)
        if command:
            yield command


def _fault(words: list[str], block: Block) -> str:
    name, *rest = words
    name = name.removeprefix(".venv/bin/")
    match name, *rest:
        case "make", *targets:
            return _unknown_target(targets)
        case ("pip", "install", *wanted) | ("python", "-m", "pip", "install", *wanted):
            return _unknown_extra(wanted)
        case "python", "-m", kit, *args if kit in KITS:
            return _parse(KITS[kit], f"python -m {kit}", args)
        case "python" | "python3", "-m", "venv" | "bench" | "build", *_:
            return ""
        case "python", script if script in files_of(block.page):
            return ""
        case "python", "-m", package, *_ if _is_of_example(block, f"{package}/__main__.py"):
            return ""
        case "python", script, *_ if _is_of_example(block, script):
            return ""
        case command, *args if command in OURS:
            return _parse(OURS[command], command, args)
        case command, *_ if command in OTHERS | OF_HOSTS:
            return ""
    return "nobody knows this command"


def _is_of_example(block: Block, file: str) -> bool:
    """Return whether the page is an example's, and the example has this file."""
    folder = block.page.parent
    return folder.is_relative_to(EXAMPLES) and (folder / file).is_file()


def _parse(command: click.Command, name: str, args: list[str]) -> str:
    """Parse it by the parsers of the command and its subcommands. Arguments are not files that must exist."""
    parent: Any = None
    try:
        while True:
            context = command.make_context(name, list(args), parent=parent)
            if not isinstance(command, click.Group):
                return ""
            left = [*context._protected_args, *context.args]
            if not left:
                return "which subcommand?"
            found, subcommand, args = command.resolve_command(context, left)
            if subcommand is None:
                return f"no subcommand {found}"
            name, command, parent = str(found), subcommand, context
    except click.exceptions.Exit:  # --help
        return ""
    except click.ClickException as fault:
        return fault.format_message()


def _unknown_target(targets: list[str]) -> str:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    strange = [each for each in targets if "=" not in each and each not in known]
    return f"no target {strange[0]}" if strange else ""


def _unknown_extra(wanted: list[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for each in wanted:
        if re.fullmatch(r"messagebus(\[.*\])?", each):
            return f"{each} is another project's distribution"
        extras = re.fullmatch(r"(?:messagebus-rabbitmq|.*\.whl)\[([a-z,]+)\]", each)
        for extra in extras[1].split(",") if extras else ():
            if extra not in project["optional-dependencies"]:
                return f"no extra {extra}"
    return ""


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
    """Return the Python of a page that needs no cluster, and what it says that this prints."""
    return [
        block
        for block in BLOCKS
        if block.page == page and not block.marks.keys() & {"cluster", "not run"}
        if block.language == "python" or "printed" in block.marks
    ]


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


# Those of people and of hosts: Debian's /bin/sh reads what `ssh` sends, unless a login shell is another one.
SHELLS = ("bash", "dash")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_that_a_command_is_typed_in_can_read_it_that_of_the_far_end_too(
    shell: str,
) -> None:
    faults = {
        f"{block.name}: {text}": fault
        for block in wanted("sh")
        for text in (block.text, *sent_by_ssh(block.text))
        if (fault := unreadable(shell, text))
    }
    assert faults == {}
    (sent,) = sent_by_ssh("ssh db1 rabbitmqctl eval 'ssl:clear_pem_cache().'")
    assert unreadable(shell, sent), "quotes of the near shell do not reach the far one"


def sent_by_ssh(text: str) -> Iterator[str]:
    """Yield what the shell of a far host is given: `ssh` joins its words with spaces."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "ssh" in words:
            yield " ".join(words[words.index("ssh") + 2 :])


def unreadable(shell: str, text: str) -> str:
    """Return what a shell says of a text that it reads and does not run; "" where it can read it."""
    read = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
    return read.stderr if read.returncode else ""


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
