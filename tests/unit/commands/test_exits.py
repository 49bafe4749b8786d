"""Options of commands, and their exit codes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import bench.errors
import ops.errors
import spark.command
from bench.errors import DoesNotHold, InputInvalid
from consumer_lists.errors import PushRefused
from lb.errors import BalancerUnreachable
from messagebus import ConfigError, errors
from messagebus.commands.exits import MEANINGS, Exit, Program, code_of
from messagebus.commands.options import bus_settings, option_anywhere, option_value
from messagebus.recording.manifest import RunInvalid
from messagebus.stats import Outcome
from ops.errors import HostUnreachable, NoAnswer, PlanFailed, SudoRefused

ROOT = Path(__file__).resolve().parents[3]
CODES = {**ops.errors.CODES, **bench.errors.CODES, **spark.command.CODES}


def program(fault: BaseException | int, *, hint: str = "") -> Program:
    @click.command()
    def act() -> int:
        if isinstance(fault, int):
            return fault
        raise fault

    made = Program("bus", codes=CODES)
    made.add_command(act)
    made.hint = hint
    return made


def said(fault: BaseException | int, **how: str) -> tuple[int, str]:
    done = CliRunner().invoke(program(fault, **how), ["act"])
    return done.exit_code, done.stderr


def test_the_page_has_the_codes_as_they_are() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (.*) \|$", (ROOT / "docs/reference/commands.md").read_text(), re.M
    )
    assert [(int(code), text) for code, text in rows] == list(MEANINGS.items())
    assert list(MEANINGS) == list(Exit)


def test_every_program_s_help_has_them() -> None:
    shown = CliRunner().invoke(program(0), ["-h"]).stdout
    assert all(f"  {int(code):<3}  {text}\n" in shown for code, text in MEANINGS.items())


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (errors.ConfigError("x"), Exit.USAGE),
        (errors.BindingError("x"), Exit.USAGE),
        (errors.NameInvalid("x"), Exit.USAGE),
        (errors.MessageInvalid("x"), Exit.USAGE),
        (errors.Unroutable("m"), Exit.ABSENT),
        (errors.ChannelRefused("mb1", 404, "no queue"), Exit.ABSENT),
        (errors.ChannelRefused("mb1", 403, "refused"), Exit.LOGIN),
        (errors.ChannelRefused("mb1", 406, "otherwise"), Exit.FAILED),
        (errors.LoginRefused("mb1", "x"), Exit.LOGIN),
        (errors.CertificateRefused("mb1", "x"), Exit.LOGIN),
        (errors.NotReady("x"), Exit.SILENT),
        (errors.BacklogFull("x"), Exit.SILENT),
        (errors.LinkLost("mb1", "x"), Exit.SILENT),
        (errors.ListUnavailable("x"), Exit.SILENT),
        (errors.RegistrationIncomplete("x", {}), Exit.SILENT),
        (errors.ListInvalid("x"), Exit.FAILED),
        (errors.TopologyMismatch("x"), Exit.FAILED),
        (OSError("x"), Exit.FAILED),
        (BalancerUnreachable("x"), Exit.SILENT),
        (PushRefused("x"), Exit.FAILED),
        (NoAnswer("x"), Exit.SILENT),
        (HostUnreachable("h", "x"), Exit.SILENT),
        (SudoRefused("h", "x"), Exit.LOGIN),
        (PlanFailed("step", "x"), Exit.FAILED),
        (InputInvalid("x"), Exit.USAGE),
        (DoesNotHold("x"), Exit.FOUND),
        (RunInvalid("x"), Exit.USAGE),
        (click.UsageError("x"), Exit.USAGE),
        (click.ClickException("x"), Exit.FAILED),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (Exit.PARTLY, Exit.PARTLY),
    ],
)
def test_an_error_is_one_line_with_its_code(fault: BaseException | int, code: Exit) -> None:
    found, told = said(fault)
    told = told.removeprefix("\n")  # behind a terminal's ^C
    assert found == code
    assert told.count("\n") == (0 if isinstance(fault, int) else 1)
    assert not told or told.startswith("bus: ")


def test_an_error_ends_with_the_section_that_explains_it() -> None:
    _, told = said(errors.NotReady("no answer from mb1"), hint=" (mb1 is the default)")
    assert told == ("bus: no answer from mb1 (mb1 is the default) [messagebus explain notready]\n")
    assert [said(fault)[1] for fault in (NoAnswer("x"), OSError("x"), click.UsageError("x"))] == (
        3 * ["bus: x\n"]
    )


def test_a_defect_is_no_one_liner() -> None:
    done = CliRunner().invoke(program(ZeroDivisionError("x")), ["act"])
    assert isinstance(done.exception, ZeroDivisionError)


def test_of_errors_of_their_own_the_nearest_class_counts() -> None:
    class Ours(errors.LoginRefused):
        pass

    assert code_of(Ours("mb1", "x")) is Exit.LOGIN
    assert errors.Unknown("m").outcome is Outcome.UNKNOWN
    assert code_of(errors.Unknown("m")) is Exit.FAILED


def test_a_missing_file_is_told_by_its_name() -> None:
    assert said(FileNotFoundError(2, "No such file", "x.toml")) == (
        1,
        "bus: x.toml: No such file\n",
    )


def test_what_the_settings_lack_is_said_unless_the_command_itself_is_wrong() -> None:
    told = said(errors.NotReady("x"), hint=" (Y is not set)")[1]
    assert told.startswith("bus: x (Y is not set) [")
    assert said(errors.ConfigError("x"), hint=" (Y is not set)")[1] == (
        "bus: x [messagebus explain configerror]\n"
    )


def test_without_a_command_it_prints_its_help() -> None:
    done = CliRunner().invoke(program(0), [])
    assert "Usage: bus [OPTIONS] COMMAND" in done.output
    assert "bus: Usage" not in done.output


def test_a_reader_that_has_gone_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr(os, "dup2", lambda _from, to: closed.append(to))
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    with pytest.raises(SystemExit) as ended:
        program(BrokenPipeError()).main(["act"])
    assert (ended.value.code, closed) == (Exit.FAILED, [1])


def completed(words: str) -> Result:
    asked = {"_BUS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "1"}
    return CliRunner().invoke(program(0), prog_name="python -m bus", env=asked)


def test_a_shell_completes_it_under_its_name() -> None:
    assert completed("bus a").output == "plain,act\n"
    script = CliRunner().invoke(program(0), env={"_BUS_COMPLETE": "bash_source"}).output
    assert "_BUS_COMPLETE=bash_complete" in script
    assert "complete -o nosort -F _bus_completion bus" in script


def with_tell(said: Callable[[], str]) -> click.Group:
    """Return a group whose command `inner tell` prints a text."""

    @click.group()
    def outer() -> None:
        pass

    @outer.group()
    def inner() -> None:
        pass

    @inner.command()
    def tell() -> None:
        click.echo(said())

    return outer


@pytest.fixture
def group() -> click.Group:
    outer = with_tell(lambda: option_value("file") or "nothing")

    @outer.command()
    @click.option("--file")
    def own(file: str) -> None:
        click.echo(f"own {file}, {option_value('file')}")

    option_anywhere(outer, click.Option(["--file"], help="A file."))
    return outer


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("inner tell", "nothing"),
        ("--file a inner tell", "a"),
        ("inner --file a tell", "a"),
        ("inner tell --file a", "a"),
        ("--file a inner tell --file b", "b"),
        ("--file a own", "own None, a"),
        ("own --file b", "own b, None"),
    ],
)
def test_an_option_is_heard_before_and_behind_its_command(
    group: click.Group, words: str, told: str
) -> None:
    assert CliRunner().invoke(group, words.split()).output == f"{told}\n"


@pytest.mark.parametrize(
    "words", ["--file a inner tell", "inner --file a tell", "inner tell --file a"]
)
def test_a_command_without_an_option_refuses_it_on_either_side(words: str) -> None:
    outer = with_tell(lambda: "told")
    option_anywhere(outer, click.Option(["--file"]), without={"inner": "say it louder"})
    done = CliRunner().invoke(outer, words.split())
    assert (done.exit_code, done.output.count("told")) == (2, 0)
    assert "--file is not an option of" in done.output
    assert "say it louder" in done.output
    assert CliRunner().invoke(outer, ["inner", "tell"]).output == "told\n"
    assert "--file" not in CliRunner().invoke(outer, ["inner", "tell", "--help"]).output


def test_outside_of_a_command_nothing_was_said() -> None:
    assert option_value("file") is None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MESSAGEBUS_BROKERS", "MESSAGEBUS_BROKER'"),
        ("MESSAGEBUS_PUBLISHER_WINDOWS", "MESSAGEBUS_PUBLISHER_WINDOW'"),
        ("MESSAGEBUS_CONSUMER_PREFETCHED", "MESSAGEBUS_CONSUMER_PREFETCH'"),
    ],
)
def test_every_wrong_name_is_told_whatever_the_command_needs(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    monkeypatch.setenv(name, "5")
    with pytest.raises(ConfigError, match=nearest):
        bus_settings()
