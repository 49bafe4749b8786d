"""Steps of making a mirror: their order, and their exact commands and hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.mirror import commands
from ops.mirror import disks as playbooks
from ops.run.plan import Blocked
from tests.support.mirrors import mirror_view, ran


def test_what_the_making_of_a_mirror_runs(file: Path) -> None:
    seen = mirror_view(file)
    plan = playbooks.create(seen, skip_sync=False, erase=[seen.hosts[1]], agent=True)
    assert ran(plan) == [
        f"here: {sys.executable} -m ops drbd install mb1 --inventory {file}",
        "db1: modprobe drbd",
        "db2: modprobe drbd",
        "db2: wipefs --all --quiet /dev/vdb",
        "db1: systemctl disable rabbitmq-server",
        "db2: systemctl disable rabbitmq-server",
        "db1: install -d -o root -g root -m 555 /var/lib/rabbitmq",
        "db2: install -d -o root -g root -m 555 /var/lib/rabbitmq",
        "db1: drbdadm create-md --force mb1",
        "db2: drbdadm create-md --force mb1",
        "db1: drbdadm adjust mb1",
        "db2: drbdadm adjust mb1",
        "db1: drbdadm primary --force mb1",
        "db1: mkfs.ext4 -q /dev/drbd0",
        "db1: mount /dev/drbd0 /var/lib/rabbitmq",
        "db1: install -d -o rabbitmq -g rabbitmq -m 750 /var/lib/rabbitmq",
        "db1: install -d -o messagebus -g messagebus -m 750 /var/lib/rabbitmq/messagebus",
        "db1: mount --bind /var/lib/rabbitmq/messagebus /var/lib/messagebus",
        "db1: /usr/local/lib/messagebus/move-address take 10.0.0.9/24",
    ]
    assert plan.steps[-1].name == "wait until both disks are alike"


def test_two_new_disks_may_be_declared_alike(file: Path) -> None:
    plan = playbooks.create(mirror_view(file), skip_sync=True, erase=[], agent=False)
    assert "db1: drbdadm new-current-uuid --clear-bitmap mb1/0" in ran(plan)
    assert "db1: drbdadm primary mb1" in ran(plan)
    assert not any("--force" in line and "primary" in line for line in ran(plan))


def test_what_destroys_data_is_not_repeated_when_a_run_is_resumed(file: Path) -> None:
    """The journal may lack a step that was done: metadata and file systems are looked for first."""
    plan = playbooks.create(mirror_view(file), skip_sync=False, erase=[], agent=False)
    destroys = [
        step
        for step in plan.steps
        if any({"create-md", "mkfs.ext4", "--force"} & set(each.argv) for each in step.commands)
    ]
    assert len(destroys) == 4
    assert all(step.done and step.done() for step in destroys)


def test_a_split_brain_is_ended_by_the_victim_alone(file: Path) -> None:
    seen = mirror_view(file, "12 A", "12 B")
    plan = playbooks.resolve(seen, seen.hosts[1], is_primary=True, agent=True)
    assert ran(plan) == [
        "db2: systemctl stop messagebus-agent",
        "db2: systemctl stop rabbitmq-server",
        "db2: /usr/local/lib/messagebus/move-address drop 10.0.0.9/24",
        "db2: umount /var/lib/messagebus",
        "db2: umount /var/lib/rabbitmq",
        "db2: drbdadm secondary mb1",
        "db2: drbdadm disconnect mb1",
        "db2: drbdadm connect --discard-my-data mb1",
        "db1: drbdadm adjust mb1",
        f"here: {sys.executable} -m ops drbd status mb1 --inventory {file}",
    ]
    small = playbooks.resolve(seen, seen.hosts[1], is_primary=False, agent=False)
    assert ran(small) == ran(plan)[-4:]


def test_a_host_that_is_alone_already_is_not_disconnected_again(file: Path) -> None:
    def is_done(one: str, two: str) -> bool:
        seen = mirror_view(file, one, two)
        step = playbooks.resolve(seen, seen.hosts[1], is_primary=False, agent=False).steps[0]
        assert step.done
        return step.done()

    assert is_done("12 A", "12 B")
    assert not is_done("07 A", "07 B")


def test_small_orders(file: Path) -> None:
    seen = mirror_view(file)
    home, standby = seen.hosts
    assert ran(playbooks.connect(seen)) == [
        "db1: rm -f /run/messagebus/dead/mb1.db2",
        "db1: drbdadm adjust mb1",
        "db2: rm -f /run/messagebus/dead/mb1.db1",
        "db2: drbdadm adjust mb1",
        f"here: {sys.executable} -m ops drbd status mb1 --inventory {file}",
    ]
    assert ran(playbooks.disconnect(seen, standby)) == ["db2: drbdadm disconnect mb1"]
    assert ran(playbooks.verify(seen, home)) == ["db1: drbdadm verify mb1"]
    assert ran(playbooks.rate(seen, "40M")) == [
        "db1: drbdadm disk-options --resync-rate=40M mb1",
        "db2: drbdadm disk-options --resync-rate=40M mb1",
    ]


def test_connecting_waits_for_both_copies_and_not_for_a_split_brain(file: Path) -> None:
    def check(one: str, two: str) -> str:
        step = playbooks.connect(mirror_view(file, one, two)).steps[0]
        assert step.check
        return step.check()

    assert check("06 A", "06 B") == ""
    assert "% done" in check("04 A", "04 B")
    assert "db2" in check("06 A", "")
    with pytest.raises(Blocked, match="drbd resolve mb1"):
        check("12 A", "12 B")


def test_comparing_ends_when_every_block_is_compared(file: Path) -> None:
    def check(state: str) -> str:
        seen = mirror_view(file, state)
        step = playbooks.verify(seen, seen.hosts[0]).steps[0]
        assert step.check
        return step.check()

    assert check("17 A").startswith("VerifyS")
    assert check("06 A") == ""


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (commands.load_module(), "modprobe drbd"),
        (commands.create_metadata("mb1"), "drbdadm create-md --force mb1"),
        (commands.adjust("mb1"), "drbdadm adjust mb1"),
        (commands.events("mb1"), "drbdsetup events2 --now --statistics mb1"),
        (commands.generations("mb1"), "drbdadm get-gi mb1"),
        (commands.promote("mb1"), "drbdadm primary mb1"),
        (commands.promote_first("mb1"), "drbdadm primary --force mb1"),
        (commands.demote("mb1"), "drbdadm secondary mb1"),
        (commands.connect("mb1"), "drbdadm connect mb1"),
        (commands.connect("mb1", discard_my_data=True), "drbdadm connect --discard-my-data mb1"),
        (commands.disconnect("mb1"), "drbdadm disconnect mb1"),
        (commands.thaw("mb1"), "drbdadm resume-io mb1"),
        (commands.clear_bitmap("mb1"), "drbdadm new-current-uuid --clear-bitmap mb1/0"),
        (commands.verify("mb1"), "drbdadm verify mb1"),
        (commands.set_rate("mb1", "40M"), "drbdadm disk-options --resync-rate=40M mb1"),
    ],
)
def test_each_order_is_one_command_of_drbd(argv: tuple[str, ...], typed: str) -> None:
    assert list(argv) == typed.split()


def test_signatures_are_looked_at_and_never_erased() -> None:
    argv = commands.signatures(Path("/dev/sdb"))
    assert argv == ("wipefs", "--no-act", "--noheadings", "--output", "TYPE", "/dev/sdb")
