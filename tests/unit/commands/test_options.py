"""Options with any place in a command line, and settings from the environment."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from messagebus import ConfigError
from messagebus.commands.options import bus_settings, option_anywhere, said


@pytest.fixture
def group() -> click.Group:
    @click.group()
    def outer() -> None:
        pass

    @outer.group()
    def inner() -> None:
        pass

    @inner.command()
    def tell() -> None:
        click.echo(said("file") or "nothing")

    @outer.command()
    @click.option("--file")
    def own(file: str) -> None:
        click.echo(f"own {file}, {said('file')}")

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


def test_outside_of_a_command_nothing_was_said() -> None:
    assert said("file") is None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MESSAGEBUS_BROKERS", "broker"),
        ("MESSAGEBUS_PUBLISHER_WINDOWS", "window"),
        ("MESSAGEBUS_CONSUMER_PREFETCHED", "prefetch"),
    ],
)
def test_every_wrong_name_is_told_whatever_the_command_needs(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    monkeypatch.setenv(name, "5")
    with pytest.raises(ConfigError, match=nearest):
        bus_settings()
