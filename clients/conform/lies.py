"""Lists that a client must not believe. Each is as good as the true one would be, but for one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clients.conform.lists import Raw

if TYPE_CHECKING:
    from clients.conform.stage import Stage

MEBIBYTE = 1 << 20


def lie(name: str, stage: Stage) -> Raw:
    """Make the answer of this name. It says the next generation, and that the first broker is gone."""
    lists = stage.lists
    good = lists.text(lists.generation + 1, [stage.line(1), stage.line(2)])
    return LIES[name](good, lists.generation, stage)


def _with_line(line: str) -> Callable[[bytes, int, Stage], Raw]:
    return lambda good, generation, stage: Raw(good + line.encode() + b"\n")


def _instead(old: str, new: str) -> Callable[[bytes, int, Stage], Raw]:
    def altered(good: bytes, generation: int, stage: Stage) -> Raw:
        told = old.format(cluster=stage.lists.cluster, generation=generation + 1)
        changed = good.replace(told.encode(), new.encode())
        assert changed != good
        return Raw(changed)

    return altered


LIES: dict[str, Callable[[bytes, int, Stage], Raw]] = {
    "empty": lambda good, generation, stage: Raw(b""),
    "comments only": lambda good, generation, stage: Raw(good.split(b"127.", 1)[0]),
    "500": lambda good, generation, stage: Raw(good, 500),
    "404": lambda good, generation, stage: Raw(good, 404),
    "204": lambda good, generation, stage: Raw(b"", 204),
    "206": lambda good, generation, stage: Raw(good, 206),
    "cut": lambda good, generation, stage: Raw(good[:-9], length=len(good)),
    "older": lambda good, generation, stage: Raw(stage.lists.text(generation - 1, [stage.line(1)])),
    "another cluster": _instead("cluster: {cluster}", "cluster: another"),
    "bad cluster": _instead("cluster: {cluster}", "cluster: a b"),
    "two clusters": _with_line("# cluster: conform"),
    "two generations": _with_line("# generation: 999"),
    "negative generation": _instead("generation: {generation}", "generation: -1"),
    "generation in words": _instead("generation: {generation}", "generation: new"),
    "generation of 19 digits": _instead(
        "generation: {generation}", "generation: 1000000000000000000"
    ),
    "unknown attribute": _with_line("10.0.0.1:5672 weight=3"),
    "bad agent port": _with_line("10.0.0.1:5672 agent=0"),
    "port 0": _with_line("10.0.0.1:0"),
    "port 65536": _with_line("10.0.0.1:65536"),
    "port in words": _with_line("10.0.0.1:amqp"),
    "no host": _with_line(":5672"),
    "bad host": _with_line("-mb1.example:5672"),
    "empty label": _with_line("mb1..example:5672"),
    "twice": lambda good, generation, stage: Raw(good + f"{stage.line(1)}\n".encode()),
    "not UTF-8": lambda good, generation, stage: Raw(good + b"# \xff\xfe\n"),
    "too large": lambda good, generation, stage: Raw(good + b"# filler\n" * (MEBIBYTE // 9 + 1)),
}
