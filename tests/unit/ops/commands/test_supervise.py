from __future__ import annotations

import sys
from pathlib import Path

from ops.commands.supervise import LocalNodes, SystemdNodes
from ops.step import Command


def test_a_local_node_is_a_part_of_the_local_cluster() -> None:
    nodes = LocalNodes(Path("/c"))
    local = (sys.executable, "-m", "ops", "local")
    assert nodes.provision("mb4") == (Command((*local, "provision", "mb4", "--dir", "/c")),)
    assert nodes.start_broker("mb4") == (Command((*local, "start", "mb4", "--dir", "/c")),)
    assert nodes.stop_agent("mb4") == (Command((*local, "stop", "mb4-agent", "--dir", "/c")),)
    assert nodes.forget("mb4") == (Command((*local, "forget", "mb4", "--dir", "/c")),)


def test_another_node_is_a_host_with_units() -> None:
    nodes = SystemdNodes({"mb4": "mb4.example"})
    assert nodes.provision("mb4") == ()
    assert nodes.start_broker("mb4") == (
        Command(("systemctl", "start", "rabbitmq-server"), "mb4.example"),
    )
    assert nodes.stop_agent("mb4") == (
        Command(("systemctl", "stop", "messagebus-agent"), "mb4.example"),
    )
