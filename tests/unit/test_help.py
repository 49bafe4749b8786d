"""The help of every command of all kits, as a person reads it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

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
        for name, inner in sorted(command.commands.items()):
            yield from commands(inner, (*words, name))


EVERY = [(name, path, words) for name, path in GROUPS.items() for words in commands(group(path))]


@pytest.mark.parametrize(
    ("name", "path", "words"), EVERY, ids=[" ".join([name, *words]) for name, _, words in EVERY]
)
def test_every_command_says_what_it_does_in_whole_words(
    name: str, path: str, words: tuple[str, ...]
) -> None:
    told = [
        CliRunner().invoke(group(path), [*words, flag], prog_name=name) for flag in ("-h", "--help")
    ]
    assert [each.exit_code for each in told] == [0, 0], told[0].output
    text = told[0].output
    assert text == told[1].output
    assert text.startswith(f"Usage: {' '.join([name, *words])}")
    # Of click's own marks nothing is left, which it does in a text that it does not know as its.
    assert "\\b" not in text
    assert "\b" not in text
