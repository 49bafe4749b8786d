"""The kit's commands as tasks of Fabric: `fab --list` shows them, `fab remove --name mb2 --yes` runs one.

What a command takes several of is said several times: `fab restart --name mb1 --name mb3`. Fabric takes any
other word for the next task.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Iterator, Mapping
from inspect import Parameter, Signature
from typing import Any

import click

from inventory.shell import fabric_task
from ops.__main__ import cli, main

CONTEXT = click.Context(cli)
__all__ = cli.list_commands(CONTEXT)


def __getattr__(name: str) -> Any:
    """Return the task of a command. Raises AttributeError."""
    if command := cli.get_command(CONTEXT, name):
        return _task(name, command)
    raise AttributeError(name)


def _task(name: str, command: click.Command) -> Any:
    """Make a task. The task of a group takes a command's name as `what`, and the options of all commands."""
    group = command.commands if isinstance(command, click.Group) else {}
    params = [param for each in group.values() or [command] for param in each.params]
    words = {_key(each): each.required and not group for each in params if _is_word(each)}
    options = {_key(each): _is_flag(each) for each in params if not _is_word(each)}
    several = {
        _key(each) for each in params if each.nargs == -1 or getattr(each, "multiple", False)
    }
    signature = Signature(list(_parameters(words, options, several, has_commands=bool(group))))

    def body(*args: Any, **settings: Any) -> None:
        given = signature.bind(*args, **settings).arguments
        del given["context"]
        sys.exit(main([name, *_argv(given, options)]))

    body.__name__, body.__doc__ = name, str(command.help).replace("\b\n", "")
    body.__signature__ = signature  # type: ignore[attr-defined]
    return fabric_task(body, several & {*words, *options})


def _parameters(
    words: Mapping[str, bool], options: Mapping[str, bool], several: set[str], *, has_commands: bool
) -> Iterator[Parameter]:
    """Yield the parameters of a task. words: name -> is it required? options: name -> is it a flag?"""
    yield _parameter("context", Parameter.empty)
    if has_commands:
        yield _parameter("what", Parameter.empty)
    for key, must in words.items():
        yield _parameter(key, Parameter.empty if must else _absent(key, several))
    # Fabric makes short options of first letters; these two have theirs before all others.
    for key in sorted(options, key=lambda key: key not in ("dry_run", "yes")):
        if not keyword.iskeyword(key):
            yield _parameter(key, False if options[key] else _absent(key, several))


def _absent(key: str, several: set[str]) -> object:
    return None if key in several else ""


def _argv(given: Mapping[str, Any], options: Mapping[str, bool]) -> Iterator[str]:
    """Yield the words of a command line that says the same as a task's arguments."""
    for key, value in given.items():
        for each in value if isinstance(value, list) else [value] if value else []:
            if key in options:
                yield f"--{key.replace('_', '-')}"
            if not isinstance(each, bool):
                yield each


def _parameter(key: str, default: object) -> Parameter:
    return Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=default)


def _key(param: click.Parameter) -> str:
    key = param.opts[-1].lstrip("-").replace("-", "_")
    return "name" if key == "names" else key


def _is_word(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument)


def _is_flag(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and param.is_flag
