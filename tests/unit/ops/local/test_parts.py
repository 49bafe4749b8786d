from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local.layout import Layout
from ops.local.parts import part, part_names

LAYOUT = Layout(dir=Path("/c"), numbers=(1, 2))


def test_parts_start_in_this_order() -> None:
    assert part_names(LAYOUT) == ["epmd", "mb1", "mb2", "mb1-agent", "mb2-agent", "haproxy"]


def test_an_agent_is_the_command_of_the_wheel() -> None:
    agent = part(LAYOUT, "mb2-agent")
    config = "/c/nodes/mb2/agent.toml"
    assert agent.argv == [sys.executable, "-m", "messagebus", "-v", "agent", "--config", config]
    assert agent.address == ("127.0.0.12", 8081)


def test_haproxy_runs_as_master_and_worker() -> None:
    assert part(LAYOUT, "haproxy").argv == [
        *("/usr/sbin/haproxy", "-W"),
        *("-f", "/c/haproxy/haproxy.cfg"),
        *("-p", "/c/haproxy/master.pid"),
    ]


@pytest.mark.parametrize("name", ["mb3", "mb3-agent", "balancer", ""])
def test_what_is_not_there_is_told(name: str) -> None:
    with pytest.raises(LocalFault):
        part(LAYOUT, name)
