"""A broker goes to the other host of its mirror: the order of steps, and their exact commands and hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.mirror import failover as storage
from ops.mirror.failover import Arrival
from ops.mirror.view import MirrorView
from ops.run.plan import Plan
from tests.support.mirrors import FakeHosts, mirrored_inventory

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="10.0.0.9", service_network="24"))
    return path


@pytest.fixture
def view(file: Path) -> MirrorView:
    return MirrorView(file, "mb1", FakeHosts({"db1": "", "db2": "07 B"}).connect)


def ran(plan: Plan) -> list[str]:
    return [
        f"{command.host or 'here'}: {' '.join(command.argv)}"
        for step in plan.steps
        for command in step.commands
    ]


def failover(view: MirrorView, *, agent: bool, consume_only: bool = False) -> Plan:
    return storage.failover(
        view,
        view.hosts[1],
        Arrival(consume_only=consume_only, agent=agent),
        is_dead=True,
        power=False,
        given_up=False,
        force=False,
    )


def test_what_a_failover_runs(view: MirrorView, file: Path) -> None:
    note = f"here: {sys.executable} -m ops drbd alone mb1 db2 --inventory {file}"
    assert ran(failover(view, agent=False)) == [
        "db2: install -D -m 600 /dev/null /run/messagebus/dead/mb1.db1",
        note,
        "db2: drbdadm primary mb1",
        note,
        "db2: /usr/local/lib/messagebus/check-disk /dev/drbd0",
        "db2: mount /dev/drbd0 /var/lib/rabbitmq",
        "db2: /usr/local/lib/messagebus/move-address take 10.0.0.9/24",
        "db2: /usr/local/lib/messagebus/same-node /var/lib/rabbitmq",
        "db2: systemctl start rabbitmq-server",
        f"here: {sys.executable} -m ops inventory move mb1 db2 --inventory {file}",
        "db2: rm -f /run/messagebus/dead/mb1.db1",
    ]


def test_the_agent_holds_publishers_back_or_lets_them_in(view: MirrorView, file: Path) -> None:
    full = ran(failover(view, agent=True))
    started = full.index("db2: systemctl start messagebus-agent")
    assert full[started - 1].endswith("/var/lib/rabbitmq/.erlang.cookie /etc/messagebus/cookie")
    bound = full.index("db2: mount --bind /var/lib/rabbitmq/messagebus /var/lib/messagebus")
    assert full.index("db2: mount /dev/drbd0 /var/lib/rabbitmq") < bound < started
    assert full[-2].endswith(f"-m consumer_lists --inventory {file} push")
    assert f"here: {sys.executable} -m lb --inventory {file} ready mb1" in full
    held = ran(failover(view, agent=True, consume_only=True))
    assert f"here: {sys.executable} -m ops hold mb1 --inventory {file}" in held
    assert not any(line.endswith("ready mb1") for line in held)


def test_nothing_is_mounted_before_it_is_promoted_nor_started_before_it_is_mounted(
    view: MirrorView, file: Path
) -> None:
    lines = ran(failover(view, agent=True))
    words = ["dead", "primary", "check-disk", " mount ", "take", "same-node", "rabbitmq-server"]
    words.append("agent")
    places = [next(n for n, line in enumerate(lines) if word in line) for word in words]
    assert places == sorted(places)


def test_there_is_no_way_back_from_a_promotion_but_forward(view: MirrorView, file: Path) -> None:
    final = [step.name for step in failover(view, agent=False).steps if step.is_final]
    assert final[0] == "promote db2"


def test_a_failback_leaves_in_good_order_and_then_arrives(file: Path) -> None:
    seen = MirrorView(file, "mb1", FakeHosts({"db1": "06 B", "db2": "06 A"}).connect)
    plan = storage.failback(seen, seen.hosts[0], Arrival(consume_only=False, agent=False))
    assert ran(plan) == [
        "db2: systemctl stop rabbitmq-server",
        "db2: /usr/local/lib/messagebus/move-address drop 10.0.0.9/24",
        "db2: umount /var/lib/rabbitmq",
        "db2: drbdadm secondary mb1",
        "db1: drbdadm primary mb1",
        "db1: /usr/local/lib/messagebus/check-disk /dev/drbd0",
        "db1: mount /dev/drbd0 /var/lib/rabbitmq",
        "db1: /usr/local/lib/messagebus/move-address take 10.0.0.9/24",
        "db1: /usr/local/lib/messagebus/same-node /var/lib/rabbitmq",
        "db1: systemctl start rabbitmq-server",
        f"here: {sys.executable} -m ops inventory move mb1 db1 --inventory {file}",
    ]


def test_a_failback_can_be_taken_back_until_it_is_written_down(file: Path) -> None:
    seen = MirrorView(file, "mb1", FakeHosts({"db1": "06 B", "db2": "06 A"}).connect)
    plan = storage.failback(seen, seen.hosts[0], Arrival(consume_only=False, agent=False))
    *before, last = plan.steps
    assert all(step.undo for step in before)
    assert last.is_final


def test_a_start_and_a_stop_are_halves_of_a_failback(file: Path) -> None:
    seen = MirrorView(file, "mb1", FakeHosts({"db1": "06 B", "db2": "06 A"}).connect)
    home, standby = seen.hosts
    whole = ran(storage.failback(seen, home, Arrival(consume_only=False, agent=True)))
    stop = ran(storage.stop(seen, standby, Arrival(consume_only=False, agent=True)))
    start = ran(storage.start(seen, home, Arrival(consume_only=False, agent=True)))
    assert stop + [each for each in start if " drbd alone " not in each] == whole
