"""Check that the commands of a shell block exist, with their options; nothing is run.

Our own commands are parsed by their own parsers, targets of `make` and extras of `pip install` are looked
up; other commands are those of every shell.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any

import click

from bench.cli import bench as bench_cli
from consumer_lists.__main__ import cli as consumer_lists_cli
from lb.__main__ import cli as lb_cli
from messagebus.__main__ import cli as messagebus_cli
from ops.__main__ import cli as ops_cli
from spark.__main__ import jobs as spark_jobs
from tests.support.documents import ROOT, Block, files_of

__all__ = ["faults_of"]

OURS: dict[str, click.Command] = {"messagebus": messagebus_cli}
KITS: dict[str, click.Command] = {
    "ops": ops_cli,
    "lb": lb_cli,
    "consumer_lists": consumer_lists_cli,
    "bench": bench_cli,
    "spark": spark_jobs,
}
OTHERS = {
    "cd",
    "curl",
    "echo",
    "seq",
    "sort",
    "tail",
    "head",
    "uniq",
    "set",
    "export",
    ".",
    "mkdir",
}
# On real hosts, and tools of others.
OF_HOSTS = {"ssh", "openssl", "promtool", "rabbitmqctl", "systemctl", "journalctl", "df"}
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
        case "python", "-m", "venv" | "bench" | "build", *_:
            return ""
        case "python", script if script in files_of(block.page):
            return ""
        case command, *args if command in OURS:
            return _parse(OURS[command], command, args)
        case command, *_ if command in OTHERS | OF_HOSTS:
            return ""
    return "nobody knows this command"


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
        extras = re.fullmatch(r"messagebus-rabbitmq\[([a-z,]+)\]", each)
        for extra in extras[1].split(",") if extras else ():
            if extra not in project["optional-dependencies"]:
                return f"no extra {extra}"
    return ""
