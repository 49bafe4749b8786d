"""The command ``python -m bench profile``: the CPU time of one message, function by function.

It measures two turns. The first runs without a profiler and gives the true CPU time. The second runs
under cProfile, which makes every call more expensive, and gives only the parts. The parts are scaled so
that their sum is the CPU time of the first.
"""

from __future__ import annotations

import dataclasses
import pstats
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import options
from bench.environment import CHECKOUT
from bench.figures.scene import Group, Scene, Stage
from bench.figures.turns import DIRECT, direct_task, prepare, take_turn
from bench.harness.loop import best_loop
from bench.harness.turn import Task, Turn

MESSAGES, WARM_UP = 60_000, 6_000
ROWS = 30
WIDTH = 140


@dataclass(frozen=True, slots=True)
class Part:
    """One function of a profile.

    calls, own_us, with_callees_us: per message. raw_us: own time under the profiler.
    """

    name: str
    calls: float
    own_us: float
    with_callees_us: float
    raw_us: float


@click.command(
    epilog="Example: python -m bench profile publish --way send_many --window 50",
    short_help="Show what a message costs, function by function.",
)
@click.argument("verb", type=click.Choice(["publish", "consume"]))
@click.option(
    "--way",
    type=click.Choice(["submit", "send_many"]),
    default="submit",
    show_default=True,
    help="How it publishes.",
)
@options.number("--window", default=1000, help="Publishes in flight.", most=65535)
@options.number("--size", default=1024, help="Bytes.")
@options.number("--batch", default=1, help="Messages in one.")
@options.number("--messages", default=MESSAGES, help="So many in all.", least=1000)
@options.number("--rows", default=ROWS, help="Functions that are shown.")
@options.network
def profile(
    verb: str,
    way: str,
    window: int,
    size: int,
    batch: int,
    messages: int,
    rows: int,
    network: str,
) -> None:
    """Show what a message costs our asyncio client, function by function, at one broker directly."""
    console = Console(highlight=False, width=WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="messagebus-profile-"))
    group = Group("profile", 1, DIRECT, lambda scene: iter(()))
    with Stage(folder, network, console.print).open() as stage:
        scene = stage.scene(group, Scene(folder, console.print))
        task = dataclasses.replace(
            direct_task(scene),
            verb=verb,
            way=way if verb == "publish" else "receive",
            window=window,
            body_bytes=size,
            batch=batch,
            messages=messages,
            warm_up=WARM_UP,
            loop=best_loop(),
        )
        turn = _turn(scene, task)
        into = folder / "profile.stats"
        profiled = _turn(scene, dataclasses.replace(task, stats=str(into)))
        parts = parts_of(pstats.Stats(str(into)), turn)
    shutil.rmtree(folder, ignore_errors=True)
    kernel_us = turn.kernel_s / turn.messages * 1e6
    console.print(
        f"{verb}: {turn.rate_per_s:,.0f}/s, {turn.cpu_us:.2f} us of CPU a message: "
        f"{turn.cpu_us - kernel_us:.2f} user, {kernel_us:.2f} kernel; "
        f"loop {task.loop}; under the profiler {profiled.cpu_us:.2f} us"
    )
    console.print(profile_table(parts[:rows]))


def _turn(scene: Scene, task: Task) -> Turn:
    prepare(scene, task)
    return take_turn(task.verb, task)


def parts_of(stats: pstats.Stats, turn: Turn) -> list[Part]:
    """Return the parts, most expensive first. Waiting in the selector is not CPU time and is left out."""
    found = {
        name: values
        for name, values in stats.stats.items()  # type: ignore[attr-defined]
        if not _waits(name)
    }
    total_s = sum(own_s for _, _, own_s, _, _ in found.values()) or 1.0
    scale = turn.cpu_us / total_s
    parts = [
        Part(
            _named(*name),
            calls / turn.messages,
            own_s * scale,
            cumulative_s * scale,
            own_s / turn.messages * 1e6,
        )
        for name, (_, calls, own_s, cumulative_s, _) in found.items()
    ]
    return sorted(parts, key=lambda part: part.own_us, reverse=True)


def _waits(name: tuple[str, int, str]) -> bool:
    return "poll" in name[2] and name[0] == "~"


def _named(file: str, line: int, function: str) -> str:
    """Name a function, as ``messagebus/_io/amqp/link.py:120 on_data``; a function in C has no file."""
    if file == "~":
        return function.strip("<>")
    path = Path(file)
    if path.is_relative_to(CHECKOUT) and ".venv" not in path.parts:
        return f"{path.relative_to(CHECKOUT)}:{line} {function}"
    return f"{path.parent.name}/{path.name}:{line} {function}"


def profile_table(parts: Iterable[Part]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in ("us a message", "with callees", "profiled", "calls a message"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold")
    for part in parts:
        table.add_row(
            f"{part.own_us:.2f}",
            f"{part.with_callees_us:.2f}",
            f"{part.raw_us:.2f}",
            f"{part.calls:.3f}",
            part.name,
        )
    return table
