"""Options that several commands of this kit have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from messagebus.commands.options import NumberRange
from ops.local.layout import DEFAULT_NETWORK

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

network = click.option(
    "--network",
    default=DEFAULT_NETWORK,
    show_default=True,
    help="First three numbers of all addresses.",
)


def folder(help_text: str) -> Option:
    return click.option("--dir", "folder", type=click.Path(path_type=Path), help=help_text)


def number(
    *names: str, default: float, help: str, least: float = 1, most: float | None = None
) -> Option:
    """Return an option of a number with a default, whole as that is, and its bounds."""
    kind = click.IntRange if isinstance(default, int) else NumberRange
    bounds: Any = kind(min=least, max=most)  # type: ignore[arg-type]
    return click.option(*names, type=bounds, default=default, show_default=True, help=help)


keep = click.option(
    "--keep", "publish", is_flag=True, help="Put the figures into bench/results/figures.json too."
)
