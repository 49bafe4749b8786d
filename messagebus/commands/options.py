"""Options of a group of commands that may stand behind each of them, too, as operators type them.

`bus_settings` reads the settings of the commands from the environment, into which `apply_profile` puts those
of a file. Kinds of options that several commands have are here, too.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from messagebus.commands.exits import Group
from messagebus.stats import Durability
from messagebus.telemetry.jsonlog import FORMS, configure_logging

if TYPE_CHECKING:  # imports no client while only help is wanted
    from messagebus.config import BusConfig

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
# Beyond every count and time in s that can be meant; the library's own waits end with 292 years.
NUMBER_MAX = 1e9
_UNITS_S = {None: 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
# Settings that say the same: one of a profile removes the others of the environment.
_SAME = (("LIST_URL", "LIST_URLS"), ("PASSWORD", "PASSWORD_FILE"), ("USER", "USER_FILE"))

profiled: dict[str, str] = {}
"""Variable -> the file of the profile that it came from."""


class NumberRange(click.FloatRange):
    """Type of a number within limits, and below 1e9 in any case. Click lets "nan" pass every limit."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found: float = super().convert(value, param, ctx)
        if not abs(found) < NUMBER_MAX:
            self.fail(f"{value}: a number below 1,000,000,000 wanted", param, ctx)
        return found


def confirm(question: str | Callable[[], str], yes: bool) -> None:
    """Ask, unless yes was said already. Raises UsageError where nobody is there, and ClickException for no.

    question: or a function that returns it, where that takes time.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("no terminal to ask on: use --yes")
    if not click.confirm(question if isinstance(question, str) else question(), err=True):
        raise click.ClickException("nothing was done")


def iso(ms: int | None, timespec: str = "milliseconds") -> str | None:
    """Return a time as text, from ms since 1970; None for one that is none, such as others have written."""
    try:
        return (
            None
            if ms is None
            else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=timespec)
        )
    except (OverflowError, ValueError, OSError, TypeError):
        return None


def option_anywhere(
    group: click.Group, option: click.Option, *, without: Mapping[str, str] | None = None
) -> None:
    """Give the group and each of its commands this option. Where it occurs twice, the last counts.

    No function gets its value: see `option_value`.
    without: commands of the group that do nothing with the option -> what to do instead. They and the
    commands in them do not offer it, and refuse it before and behind the command, with this text.
    """
    option.expose_value = False
    option.callback = _keep

    def give(to: click.Command, instead: str | None = None) -> None:
        instead = (without or {}).get(to.name or "", instead)
        given = option if instead is None else _refused(option, instead)
        for command in _all(to):
            if isinstance(command, Group):
                command.on_import = partial(give, instead=instead)
            if not any(set(option.opts) & set(other.opts) for other in command.params):
                command.params.append(given)

    for name in group.commands:
        give(group.commands[name])
    give(group)


def _refused(option: click.Option, instead: str) -> click.Option:
    """Return the option as those commands have it that do nothing with it."""

    def refuse(context: click.Context, given: click.Parameter, value: Any) -> None:
        if value is not None or option_value(given.name or "") is not None:
            command = context.command_path.partition(" -m ")[2] or context.command_path
            raise click.UsageError(f"{option.opts[0]} is not an option of {command!r}: {instead}")

    return click.Option(
        option.opts, type=option.type, hidden=True, expose_value=False, callback=refuse
    )


def refuse_typed(*names: str, why: str) -> None:
    """Refuse options of the running command that were typed and would do nothing. Raises UsageError.

    names: of their parameters.
    """
    context = click.get_current_context()
    typed = [
        param.opts[0]
        for param in context.command.params
        if context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        and param.name in names
    ]
    if typed:
        raise click.UsageError(f"{', '.join(typed)}: {why}")


def option_value(name: str) -> Any:
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
    from messagebus.config import BusConfig

    return BusConfig.from_env(os.environ)


def apply_profile(name: str) -> None:
    """Put the settings of a profile into the environment, in front of those that are there.

    name: of a file in ~/.config/messagebus, in TOML, as the settings of an application. Raises ConfigError.
    """
    import tomllib

    from messagebus.config import ENV_PREFIX, BusConfig
    from messagebus.errors import ConfigError

    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"profile {name!r}: letters, digits, dots and dashes")
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = home / "messagebus" / f"{name}.toml"
    BusConfig.from_file(path)  # with every fault of all its tables
    values = tomllib.loads(path.read_text())
    tables = values if values.keys() & {"bus", "publisher", "consumer"} else {"bus": values}
    for table, settings in tables.items():
        for key, value in settings.items():
            word = key.upper() if table == "bus" else f"{table}_{key}".upper()
            for same in _SAME if table == "bus" else ():
                if word in same:
                    for other in same:
                        os.environ.pop(ENV_PREFIX + other, None)
            os.environ[ENV_PREFIX + word] = _as_variable(value)
            profiled[ENV_PREFIX + word] = str(path)


def _as_variable(value: Any) -> str:
    match value:
        case list():
            return ",".join(map(str, value))
        case dict():
            return _inline(value)
        case bool():
            return str(value).lower()
    return str(value)


def _inline(value: Any) -> str:
    """Write a value in TOML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {_inline(v)}' for k, v in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


# A hundred years: Python's times end soon after.
DURATION_S_MAX = 36_500 * 86_400


class Duration(click.ParamType[float]):
    """Type of a duration: ``90``, ``90s``, ``15m``, ``2h``, ``7d``."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(value)
        if found is None:
            self.fail(f"{value!r}: such as 90s, 15m, 2h or 7d", param, ctx)
        if (seconds := float(found[1]) * _UNITS_S[found[2]]) > DURATION_S_MAX:
            self.fail(f"{value!r}: at most {DURATION_S_MAX // 86_400}d", param, ctx)
        return seconds


def quiet_unless_verbose() -> None:
    """Log warnings alone, unless the program was called with --verbose."""
    if not click.get_current_context().find_root().params.get("verbose"):
        logging.getLogger().setLevel(logging.WARNING)


def log_to_stderr(form: str, *, verbose: bool = False) -> bool:
    """Log warnings in this form, and with --verbose connections and lists: for what runs until a signal.

    verbose: of the command's own; the program's counts, too. Returns whether one of them was given.
    """
    verbose = verbose or bool(click.get_current_context().find_root().params.get("verbose"))
    configure_logging(form, logging.INFO if verbose else logging.WARNING)
    return verbose


log_option = click.option(
    "--log",
    "form",
    type=click.Choice(FORMS),
    default=FORMS[0],
    show_default=True,
    help="Logs on standard error, a line each: for people, or JSON.",
)
subscription_option = click.option(
    "--subscription",
    "-s",
    default="",
    help="Name of the subscription, unless TOPIC is TOPIC/NAME; a queue has none.",
)


def topic_and_subscription(topic: str, subscription: str) -> tuple[str, str]:
    """Return both, where the one text may be ``orders/billing``, as in the other commands."""
    name, slash, own = topic.partition("/")
    return (name, own) if slash and not subscription else (topic, subscription)


durability_option = click.option(
    "--durability",
    type=click.Choice([each.value for each in Durability]),
    default=Durability.FSYNC.value,
    show_default=True,
    help="What a confirmed message survives: a power-off, a kill of the broker, nothing.",
)
