"""Options of a group of commands that may stand behind each of them, too, as operators type them.

`bus_settings` reads the settings of the commands from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig

__all__ = ["bus_settings", "option_anywhere", "said"]


def option_anywhere(group: click.Group, option: click.Option) -> None:
    """Give the group and every command that it has now this option. Where it occurs twice, the last counts.

    No function gets its value: see `said`.
    """
    option.expose_value = False
    option.callback = _keep
    for command in _all(group):
        if not any(set(option.opts) & set(other.opts) for other in command.params):
            command.params.append(option)


def said(name: str) -> Any:
    """Return the value of such an option in the command that runs; None when it was not given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_key(name))


def _keep(context: click.Context, option: click.Parameter, value: Any) -> Any:
    if value is not None and option.name:
        context.meta[_key(option.name)] = value
    return value


def _key(name: str) -> str:
    return f"{__name__}.{name}"


def _all(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _all(inner)


def bus_settings() -> BusConfig:
    """Read the bus's settings, and check those of publishers and consumers: a wrong name is an error.

    Raises ConfigError.
    """
    PublisherConfig.from_env(os.environ)
    ConsumerConfig.from_env(os.environ)
    return BusConfig.from_env(os.environ)
