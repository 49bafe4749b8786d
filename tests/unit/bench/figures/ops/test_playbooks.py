import click
import pytest

from bench.figures.ops.noticed import Act
from bench.figures.ops.playbooks import acts_on
from lb.__main__ import cli as lb_cli
from ops.__main__ import cli as ops_cli

KITS: dict[str, click.Group] = {"lb": lb_cli, "ops": ops_cli}


@pytest.mark.parametrize("act", acts_on("mb3", "mb2"), ids=lambda act: act.name)
def test_every_act_is_a_command_that_there_is(act: Act) -> None:
    kit, verb, *words = act.words
    command = KITS[kit].commands[verb]
    command.make_context(verb, words)
