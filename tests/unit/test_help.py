"""The help of every command of all kits, as a person reads it."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from messagebus.__main__ import LATER, cli
from messagebus.commands import outbox
from messagebus.commands.options import NumberRange
from ops import __main__ as ops
from tests.support.documents import ROOT

# What runs until a signal.
RUNNING = ("agent", "forward", "gateway", "monitor", "outbox relay", "to-http", "worker")
GROUPS = {
    "messagebus": "messagebus.__main__:cli",
    "python -m lb": "lb.__main__:cli",
    "python -m consumer_lists": "consumer_lists.__main__:cli",
    "python -m ops": "ops.__main__:cli",
    "python -m bench": "bench.cli:bench",
    "python -m spark": "spark.__main__:jobs",
}


def group(path: str) -> click.Command:
    module, _, name = path.partition(":")
    found: click.Command = getattr(importlib.import_module(module), name)
    return found


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from commands(inner_of(command, name), (*words, name))


def inner_of(command: click.Group, name: str) -> click.Command:
    found = command.get_command(click.Context(command), name)
    assert found is not None
    return found


# CliRunner's.
WIDTH = 80
# A group alone; and what a load begins itself.
UNTYPED = ((), ("worker",), ("relay",), ("remote",))
EVERY = [(name, path, words) for name, path in GROUPS.items() for words in commands(group(path))]


def context_of(name: str, path: str, words: tuple[str, ...]) -> click.Context:
    command = group(path)
    # Not of whatever terminal the tests run in.
    made = command.context_class(
        command, info_name=name, terminal_width=WIDTH, **command.context_settings
    )
    for word in words:
        assert isinstance(command, click.Group)
        command = inner_of(command, word)
        made = command.context_class(
            command, info_name=word, parent=made, **command.context_settings
        )
    return made


@pytest.mark.parametrize(
    ("name", "path", "words"), EVERY, ids=[" ".join([name, *words]) for name, _, words in EVERY]
)
def test_every_command_says_what_it_does_in_whole_words(
    name: str, path: str, words: tuple[str, ...]
) -> None:
    """The text itself is compared: output of others to this process's streams does not count."""
    context = context_of(name, path, words)
    text = context.get_help()
    assert context.command.get_help_option_names(context) == ["-h", "--help"]
    assert text.startswith(f"Usage: {' '.join([name, *words])}")
    assert "Example" in text or words in UNTYPED
    # None of click's marks is left; click leaves them in a text that it does not take for its own.
    assert "\\b" not in text
    assert "\b" not in text


@pytest.mark.parametrize("command", RUNNING)
def test_what_runs_until_a_signal_logs_as_text_or_json(command: str) -> None:
    text = context_of("messagebus", GROUPS["messagebus"], tuple(command.split())).get_help()
    assert "--log [text|json]" in text


@pytest.mark.parametrize(
    ("name", "path", "words"), EVERY, ids=[" ".join([name, *words]) for name, _, words in EVERY]
)
def test_a_list_of_commands_has_a_line_for_each_and_nothing_is_cut(
    name: str, path: str, words: tuple[str, ...]
) -> None:
    text = context_of(name, path, words).get_help()
    cut = [line for line in text.partition("\nCommands:")[2].splitlines() if line.endswith("...")]
    assert cut == []


def test_every_option_takes_its_own_default() -> None:
    refused = []
    for name, path, words in EVERY:
        context = context_of(name, path, words)
        for option in context.command.params:
            try:
                option.process_value(context, option.get_default(context))
            except click.MissingParameter:
                continue
            except click.BadParameter as fault:
                refused.append(f"{' '.join([name, *words])} {fault.message}")
    assert refused == []


OPTIONS = [
    (" ".join([name, *words]), option)
    for name, path, words in EVERY
    for option in context_of(name, path, words).command.params
    if isinstance(option, click.Option) and not option.hidden
]
# Options with one name and two meanings, which the command tells apart.
TWICE = (
    "--database",
    "--dead",
    "--dir",
    "--envelope",
    "--events",
    "--keep",
    "--lines",
    "--ndjson",
    "--out",
    "--rate",
    "--run",
)


def test_every_option_says_what_it_is_for() -> None:
    assert [f"{where} {option.opts[0]}" for where, option in OPTIONS if not option.help] == []


def test_seconds_are_told_by_the_name_of_the_option() -> None:
    """A number of seconds ends with -s; a time that takes units (15m, 2h) does not."""
    numbers = (click.types.FloatParamType, click.types.IntParamType)
    wrong = [
        f"{where} {option.opts[0]}"
        for where, option in OPTIONS
        if isinstance(option.type, numbers)
        and str(option.name).endswith("_s") != option.opts[0].endswith("-s")
        and not str(option.name).endswith("_per_s")
    ]
    assert wrong == []


def test_one_name_is_one_option_in_all_programs() -> None:
    """It is of one type, takes one or several values, and has the same short name."""
    found: dict[str, set[tuple[object, ...]]] = {}
    for _, option in OPTIONS:
        kind = (option.type.name, option.is_flag, option.multiple, tuple(option.opts))
        name = max(option.opts, key=len)
        found.setdefault(name, set()).add(kind)
    unlike = {name: kinds for name, kinds in found.items() if len(kinds) > 1 + (name in TWICE)}
    assert unlike == {}


@pytest.mark.parametrize(("name", "path"), GROUPS.items(), ids=list(GROUPS))
def test_help_is_the_same_by_either_name_and_no_fault(name: str, path: str) -> None:
    told = [CliRunner().invoke(group(path), [flag], prog_name=name) for flag in ("-h", "--help")]
    assert [(each.exit_code, each.exception) for each in told] == [(0, None), (0, None)]
    assert told[0].stdout == told[1].stdout == context_of(name, path, ()).get_help() + "\n"


@pytest.mark.parametrize(
    "words",
    [
        ["python -m lb", "--inventory", "nowhere.toml", "status"],
        ["python -m lb", "status", "--inventory", "nowhere.toml"],
        ["python -m consumer_lists", "--inventory", "nowhere.toml", "show"],
        ["python -m consumer_lists", "show", "--inventory", "nowhere.toml"],
        ["python -m ops", "--inventory", "nowhere.toml", "topology", "diff"],
        ["python -m ops", "topology", "--inventory", "nowhere.toml", "diff"],
        ["python -m ops", "topology", "diff", "--inventory", "nowhere.toml"],
    ],
    ids=" ".join,
)
def test_the_inventory_is_said_before_or_behind_a_command(words: list[str]) -> None:
    done = CliRunner().invoke(group(GROUPS[words[0]]), words[1:])
    assert done.exit_code != 0
    assert "nowhere.toml" in f"{done.output}{done.exception}"


def typed(argument: click.Parameter) -> str:
    """Return something that a command takes for this argument of its own."""
    match argument.type:
        case click.Choice() as choice:
            return str(choice.choices[0])
        case click.IntRange() as numbers:
            return str(numbers.min)
        case click.Path(exists=True):
            return __file__
    return "mb1:5672" if "HOST" in argument.type.name else "mb1"


# What a command looks at before its inventory.
MORE_WORDS: dict[tuple[str, ...], list[str]] = {
    ("drbd", "rate"): ["mb1", "40M"],
    ("drbd", "thaw"): ["mb1", "--dead", "a"],
    ("quota", "set"): ["orders/billing", "--messages", "5"],
}
OF_A_CLUSTER = [
    (name, path, words)
    for name, path, words in EVERY
    if name in ("python -m lb", "python -m consumer_lists", "python -m ops")
    and words != ("restore",)  # reads its archive before
    and not isinstance(context_of(name, path, words).command, click.Group)
]


@pytest.mark.parametrize(
    ("name", "path", "words"), OF_A_CLUSTER, ids=[" ".join([n, *w]) for n, _, w in OF_A_CLUSTER]
)
def test_a_command_reads_the_inventory_that_was_named_or_does_not_offer_to(
    name: str, path: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that works on another cluster than the named one may erase it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESSAGEBUS_LOCAL_DIR", str(tmp_path / "local"))
    params = context_of(name, path, words).command.params
    offers = any(
        "--inventory" in each.opts and not getattr(each, "hidden", False) for each in params
    )
    arguments = [typed(each) for each in params if isinstance(each, click.Argument)]
    given = MORE_WORDS.get(words, arguments)
    called = ["--inventory", "nowhere.toml"]
    for argv in ([*called, *words, *given], [*words, *called, *given]):
        done = CliRunner().invoke(group(path), argv, prog_name=name)
        told = f"{done.output}{done.exception}"
        assert ("nowhere.toml" if offers else "--inventory is not an option of") in told
        assert done.exit_code != 0
    assert {each.name for each in tmp_path.iterdir()} <= {"ops.lock"}


@pytest.mark.parametrize(
    ("name", "path", "words"), EVERY, ids=[" ".join([name, *words]) for name, _, words in EVERY]
)
def test_no_option_takes_nan_for_a_number(name: str, path: str, words: tuple[str, ...]) -> None:
    for param in context_of(name, path, words).command.params:
        if isinstance(param.type, click.types.FloatParamType):
            assert isinstance(param.type, NumberRange), param.name


def test_every_command_completes_in_bash() -> None:
    told = CliRunner().invoke(
        group(GROUPS["messagebus"]), prog_name="messagebus", env=COMPLETES | {"COMP_CWORD": "1"}
    )
    assert told.output.splitlines() == ["plain,parked", "plain,partitions", "plain,publish"]


COMPLETES = {"_MESSAGEBUS_COMPLETE": "bash_complete", "COMP_WORDS": "messagebus p"}


def test_commands_that_are_imported_later_are_told_by_their_own_words() -> None:
    for group_, known in ((cli, LATER), (outbox.group, outbox.LATER), (ops.cli, ops.LATER)):
        later = {name: line for name, (_place, line) in known.items()}
        assert later == {name: inner_of(group_, name).get_short_help_str(WIDTH) for name in known}


def test_no_module_adds_a_command_to_a_group_of_another_one() -> None:
    """A process that imports what it runs, as each step of a playbook, would not find it."""
    adds = re.compile(r"\.(command|group|add_command)\(")
    added = []
    for package in ("messagebus", "lb", "consumer_lists", "ops", "bench", "spark"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if not adds.search(text := file.read_text()):
                continue
            nodes = [*ast.walk(ast.parse(text))]
            taken = {
                name.asname or name.name
                for node in nodes
                if isinstance(node, ast.ImportFrom)
                for name in node.names
            }
            added += [
                f"{file.relative_to(ROOT)}: {node.func.value.id}"
                for node in nodes
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("command", "group", "add_command")
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in taken
            ]
    assert added == []


def test_help_imports_no_client() -> None:
    """It is typed most often, and a client with pika and httpx takes four times as long to import."""
    code = "import sys; from messagebus.__main__ import cli; cli.run(['--help'], prog_name='messagebus');"
    code += "sys.exit(bool(sys.modules.keys() & {'pika', 'httpx', 'asyncio', 'ssl'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
