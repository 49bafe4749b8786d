"""The module of each system: the harness asks for its parts by name, so no checker sees one that is gone."""

from __future__ import annotations

import importlib
import shlex

import pytest

from bench.clients.rabbitmq import live_page
from bench.load.systems import SYSTEMS


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_has_all_that_a_run_asks_of_it(name: str) -> None:
    module = importlib.import_module(SYSTEMS[name].module)
    load = ["measure"] if SYSTEMS[name].own_load else ["Sender", "Receiver"]
    wanted = ["started", "durability", *load]
    assert [part for part in wanted if not callable(getattr(module, part, None))] == []


def test_a_run_prints_the_command_of_its_live_page_which_a_shell_reads_back() -> None:
    env = {"MESSAGEBUS_BROKER": "127.0.0.1:5672", "MESSAGEBUS_PASSWORD_FILE": "/tmp/a run/bus"}
    said, _, command = live_page(env).partition(": ")
    assert said == "live page, from another terminal"
    *settings, program, service = shlex.split(command)
    assert dict(each.split("=", 1) for each in settings) == env
    assert (program, service) == ("messagebus", "monitor")
