"""Exit codes of every command and kit, the same everywhere, and errors in one line.

docs/reference/commands.md has the codes as a table, and every program's ``--help``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import click
from click.shell_completion import shell_complete

from messagebus import __version__
from messagebus.errors import (
    BacklogFull,
    ChannelRefused,
    ConfigError,
    LinkLost,
    ListUnavailable,
    LoginRefused,
    MessageBusError,
    MessageInvalid,
    NameInvalid,
    NotFound,
    NotReady,
    RegistrationIncomplete,
    Unroutable,
    one_line,
    reason_of,
    remedy_of,
)
from messagebus.terminal import say

HELP = {"help_option_names": ["-h", "--help"]}


class Exit(IntEnum):
    """End of a command. A signal that ends a process is 128 and its number, as in shells."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PARTLY = 3
    ABSENT = 4
    LOGIN = 5
    SILENT = 6
    FOUND = 7
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Mapping[Exit, str] = {
    Exit.DONE: "done",
    Exit.FAILED: "failed",
    Exit.USAGE: "wrong usage, or an invalid setting",
    Exit.PARTLY: "partly done: some parts failed or did not answer",
    Exit.ABSENT: "no such topic, queue, subscription or parked message",
    Exit.LOGIN: "login refused, or not allowed",
    Exit.SILENT: "no answer in time",
    Exit.FOUND: "problems found by a check, a comparison or an audit",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.TERMINATED: "ended by SIGTERM",
}

Codes = Mapping[type[BaseException], Exit]
# An error that is not here has the code of the nearest class above it.
CODES: Codes = {
    OSError: Exit.FAILED,
    MessageBusError: Exit.FAILED,
    ConfigError: Exit.USAGE,
    NameInvalid: Exit.USAGE,
    MessageInvalid: Exit.USAGE,
    Unroutable: Exit.ABSENT,
    NotFound: Exit.ABSENT,
    LoginRefused: Exit.LOGIN,
    NotReady: Exit.SILENT,
    BacklogFull: Exit.SILENT,
    LinkLost: Exit.SILENT,
    ListUnavailable: Exit.SILENT,
    RegistrationIncomplete: Exit.SILENT,
}
# Exit codes of AMQP's reply codes.
REFUSALS = {403: Exit.LOGIN, 404: Exit.ABSENT}
# click 8.1 has none: it prints the help and ends.
NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())


def code_of(fault: BaseException, codes: Codes = CODES) -> Exit:
    """Return the exit code of an error. codes: a kit's, beside those of messagebus."""
    if isinstance(fault, ChannelRefused):
        return REFUSALS.get(fault.code, Exit.FAILED)
    known = {**CODES, **codes}
    return next((known[kind] for kind in type(fault).__mro__ if kind in known), Exit.FAILED)


def run(
    command: click.Command,
    argv: Sequence[str] | None = None,
    *,
    prog_name: str,
    codes: Codes = CODES,
    hint: Callable[[], str] = str,
) -> int:
    """Run a command and return its exit code; print an exception as one line on standard error.

    argv: None for those of this process. codes: errors of the kit, beside those of messagebus; others pass
    through. hint: returns what is added to errors that no correction of the command line would mend.
    """
    name = prog_name.split()[-1]

    def failed(text: str, code: int) -> int:
        say(f"{name}: {one_line(text)}", err=True)
        return code

    args = None if argv is None else list(argv)
    try:
        # click's own, also of a Program.
        code = click.Command.main(command, args, prog_name, standalone_mode=False)
    except NO_ARGUMENTS as fault:
        fault.show()
        return Exit.USAGE
    except click.ClickException as fault:
        return failed(fault.format_message(), fault.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return failed("interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, as in `messagebus consume ... | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (*CODES, *codes) as fault:
        found = code_of(fault, codes)
        why = hint() if found is not Exit.USAGE else ""
        docs = f" [{place}]" if (place := remedy_of(fault)) else ""
        return failed(f"{_text_of(fault)}{why}{docs}", found)
    return int(code) if isinstance(code, int) else Exit.DONE


def _text_of(fault: BaseException) -> str:
    if isinstance(fault, OSError) and fault.filename is not None and fault.strerror:
        return f"{fault.filename}: {fault.strerror}"
    return reason_of(fault)


Later = Mapping[str, tuple[str, str]]


def with_extra(extra: str, path: str) -> ModuleType:
    """Import a module that needs the libraries of an extra. Raises UsageError where one is missing."""
    try:
        return import_module(path)
    except ModuleNotFoundError as fault:
        library = (fault.name or "messagebus").partition(".")[0]
        if library == "messagebus":
            raise
        raise click.UsageError(
            f"{library} is not installed: pip install 'messagebus-rabbitmq[{extra}]'"
        ) from fault


class Group(click.Group):
    """Group of commands. later: those that are imported when one is used.

    Name -> (``module:attribute``, and its line in the help). on_import: called with each when it is imported.
    """

    def __init__(self, name: str, *, later: Later | None = None, **settings: Any) -> None:
        """Settings: click.Group's."""
        self._later = later or {}
        self.on_import: Callable[[click.Command], None] = lambda _command: None
        super().__init__(name, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._later, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._later and cmd_name not in self.commands:
            module, _, attribute = self._later[cmd_name][0].partition(":")
            self.commands[cmd_name] = getattr(import_module(module), attribute)
            self.on_import(self.commands[cmd_name])
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command; none is imported for it."""
        names = self.list_commands(ctx)
        room = formatter.width - 6 - max(map(len, names), default=0)
        told = {name: line for name, (_place, line) in self._later.items()}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(n, told.get(n) or self.commands[n].get_short_help_str(room)) for n in names]
            )


class Program(Group):
    """Group of the commands of `messagebus` or of a kit, with the same help, version, completion and errors.

    name: what errors begin with. codes: of its errors, see `run`.
    A shell completes the program under its name with _NAME_COMPLETE=bash_source, as click has it.
    """

    def __init__(self, name: str, *, codes: Codes = CODES, **settings: Any) -> None:
        """Settings: those of a group."""
        super().__init__(name, context_settings=HELP, **settings)
        self.codes, self.hint = codes, ""
        click.version_option(__version__, prog_name=name)(self)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *_: Any,
        **__: Any,
    ) -> NoReturn:
        """Run, and end the process."""
        sys.exit(self.run(args, prog_name=prog_name or str(self.name)))

    def run(self, args: Sequence[str] | None, *, prog_name: str) -> int:
        """Run, or tell a shell how a word is completed. Returns the exit code."""
        name = str(self.name)
        variable = f"_{name.upper()}_COMPLETE"
        if asked := os.environ.get(variable):
            return shell_complete(self, {}, name, variable, asked)
        return run(self, args, prog_name=prog_name, codes=self.codes, hint=lambda: self.hint)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes below the commands."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), text) for code, text in MEANINGS.items()])
