"""The module of each system: the harness asks for its parts by name, so no checker sees one that is gone."""

from __future__ import annotations

import importlib

import pytest

from bench.load.systems import SYSTEMS


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_has_all_that_a_run_asks_of_it(name: str) -> None:
    module = importlib.import_module(SYSTEMS[name].module)
    load = ["measure"] if SYSTEMS[name].own_load else ["Sender", "Receiver"]
    wanted = ["started", "durability", *load]
    assert [part for part in wanted if not callable(getattr(module, part, None))] == []
