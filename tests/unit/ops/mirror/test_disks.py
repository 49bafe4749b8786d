"""Disks of a mirror: their files and the commands that set them up."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from inventory import shell
from inventory.errors import TooFewServe
from inventory.inventory import Inventory, parse
from inventory.serving import FORCE
from ops.__main__ import main
from ops.cluster import checks
from ops.mirror import commands, storage_cli
from ops.mirror import disks as playbooks
from ops.mirror.files import PROGRAMS, authorized_line, files, partner, proof_of_death
from ops.run.plan import Blocked
from tests.support.mirrors import FakeHosts, mirror_view, mirrored_inventory, ran


def test_what_the_making_of_a_mirror_runs(file: Path) -> None:
    seen = mirror_view(file)
    plan = playbooks.create(seen, skip_sync=False, erase={"db2": "ext4"}, agent=True)
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
    plan = playbooks.create(mirror_view(file), skip_sync=True, erase={}, agent=False)
    assert "db1: drbdadm new-current-uuid --clear-bitmap mb1/0" in ran(plan)
    assert "db1: drbdadm primary mb1" in ran(plan)
    assert not any("--force" in line and "primary" in line for line in ran(plan))


def test_what_destroys_data_is_not_repeated_when_a_run_is_resumed(file: Path) -> None:
    """The journal may lack a step that was done: metadata and file systems are looked for first."""
    plan = playbooks.create(mirror_view(file), skip_sync=False, erase={}, agent=False)
    destroys = [
        step
        for step in plan.steps
        if any({"create-md", "mkfs.ext4", "--force"} & set(each.argv) for each in step.commands)
    ]
    assert len(destroys) == 4
    assert all(step.done and step.done() for step in destroys)


def test_a_disk_is_erased_only_while_it_holds_what_was_given_up(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at before the question, which may have been asked hours ago, or in another run."""
    seen, holds = mirror_view(file), ["ext4"]
    monkeypatch.setattr(type(seen), "output_of", lambda *_: "\n".join(holds))
    plan = playbooks.create(seen, skip_sync=False, erase={"db2": "ext4"}, agent=True)
    disk = playbooks.new_disk(seen, seen.hosts[1], erase={"db2": "ext4"})
    erases = [step for step in (*plan.steps, *disk.steps) if step.name.startswith("erase what")]
    makes = [step for step in (*plan.steps, *disk.steps) if "DRBD's metadata" in step.name]
    assert (len(erases), len(makes)) == (2, 3)
    for step in erases:
        assert step.guard
        assert step.guard() == ""
    for step in makes:
        assert step.guard
        assert "holds ext4, which no option permits to destroy" in step.guard()
    holds.append("crypto_LUKS")
    assert all("holds ext4 and crypto_LUKS, which" in step.guard() for step in erases if step.guard)
    holds.clear()
    assert all(step.guard() == "" for step in (*erases, *makes) if step.guard)


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


HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}
NO_AGENT: dict[str, str | None] = {"systemctl cat messagebus-agent": None}


@pytest.fixture
def two_hosts(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(mirrored_inventory(HOSTS, address="10.0.0.9"))
    return path


def storage(
    two_hosts: Path, monkeypatch: pytest.MonkeyPatch, one: str, two: str, *words: str
) -> int:
    hosts = FakeHosts({"db1": one, "db2": two}, NO_AGENT)
    monkeypatch.setattr(shell, "remote", hosts.connect)
    return main(["storage", *words, "--inventory", str(two_hosts)])


def test_a_failover_goes_to_the_host_that_the_broker_is_not_on(
    two_hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("failover", "mb1", "--dead", "db1", "--dry-run")
    assert storage(two_hosts, monkeypatch, "", "07 B", *words) == 0
    assert "ssh db2 'drbdadm primary mb1'" in capsys.readouterr().out


def test_a_failover_without_a_proof_is_refused(
    two_hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage(two_hosts, monkeypatch, "", "07 B", "failover", "mb1", "--yes") == 1
    assert "nothing is known of db1" in capsys.readouterr().err


def test_replacing_a_mirrored_broker_is_a_failover_with_the_same_proof(
    two_hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = FakeHosts({"db1": "", "db2": "07 B"}, NO_AGENT)
    monkeypatch.setattr(shell, "remote", hosts.connect)
    replace = ["replace", "mb1", "--inventory", str(two_hosts)]
    assert main([*replace, "--yes"]) == 1
    assert "nothing is known of db1" in capsys.readouterr().err
    assert main([*replace, "--dead", "db1", "--dry-run"]) == 0
    replaced = capsys.readouterr().out
    assert main(["storage", "failover", *replace[1:], "--dead", "db1", "--dry-run"]) == 0
    assert replaced == capsys.readouterr().out


def test_a_failback_wants_a_whole_mirror(
    two_hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage(two_hosts, monkeypatch, "04 A", "04 B", "failback", "mb1", "--yes") == 1
    assert "only a whole mirror is moved; db1 says SyncSource" in capsys.readouterr().err
    assert storage(two_hosts, monkeypatch, "06 A", "06 B", "failback", "mb1", "--dry-run") == 0
    assert "ssh db2 'drbdadm primary mb1'" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["stop", "failback"])
def test_the_last_broker_that_takes_publishes_is_not_stopped_unless_that_is_forced(
    word: str,
    two_hosts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(_view: object, name: str) -> None:
        raise TooFewServe(f"{name} is not taken out")

    monkeypatch.setattr(checks, "refuse_last", refuse)
    monkeypatch.setattr(storage_cli, "has_agent", lambda *_: True)
    here = (two_hosts, monkeypatch, "06 A", "06 B", word, "mb1")
    assert storage(*here, "--dry-run") == 0
    assert "would stop now: mb1 is not taken out" in capsys.readouterr().out
    assert storage(*here, "--dry-run", FORCE) == 0
    assert "is not taken out" not in capsys.readouterr().out
    assert storage(*here, "--yes") == 1
    assert capsys.readouterr().err == "ops: mb1 is not taken out\n"


def test_the_inventory_is_told_where_a_broker_is(two_hosts: Path) -> None:
    words = ["inventory", "move", "mb1", "db2", "--inventory", str(two_hosts)]
    assert main(words) == 0
    assert '\nhost = "db2"\n' in two_hosts.read_text()
    assert main([*words[:3], "db9", *words[4:]]) == 2


@pytest.mark.parametrize("words", [[], ["failover"], ["failback"], ["start"], ["stop"]])
def test_every_command_has_help_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["storage", *words, "--help"]) == 0
    assert "Example:" in capsys.readouterr().out


def inventory(**settings: str) -> Inventory:
    text = mirrored_inventory(HOSTS, address="10.0.0.9", **settings)
    return parse(tomllib.loads(text), base=Path("/c"))


def written(host: str, read: Inventory | None = None) -> dict[str, str]:
    read = read or inventory()
    return {str(each.path): each.text for each in files(read, read.mirror("mb1"), read.host(host))}


def settings(resource: str) -> dict[str, str]:
    """Return the settings of the text, comments aside."""
    lines = (line.split("#")[0].strip() for line in resource.splitlines())
    return dict(re.findall(r"^([a-z0-9-]+)\s+(.*);$", "\n".join(lines), re.MULTILINE))


def test_the_resource_keeps_the_promise() -> None:
    said = settings(written("db1")["/etc/drbd.d/mb1.res"])
    assert said["protocol"] == "C"
    assert said["fencing"] == "resource-and-stonith"
    assert said["disk-flushes"] == said["md-flushes"] == "yes"
    assert [said[f"after-sb-{n}pri"] for n in (0, 1, 2)] == ["disconnect"] * 3
    assert said["verify-alg"] == said["csums-alg"] == "crc32c"
    assert said["fence-peer"] == f'"{PROGRAMS}/fence-peer"'
    assert said["resync-rate"] == "100M"


def test_the_resource_is_the_same_on_both_hosts_and_names_both() -> None:
    resource = written("db1")["/etc/drbd.d/mb1.res"]
    assert resource == written("db2")["/etc/drbd.d/mb1.res"]
    assert re.findall(r"on (\S+) {\s+address ([^;]+);", resource) == [
        ("db1", "10.9.0.1:7789"),
        ("db2", "10.9.0.2:7789"),
    ]


def test_every_choice_in_the_resource_is_explained() -> None:
    lines = [line.strip() for line in written("db1")["/etc/drbd.d/mb1.res"].splitlines()]
    for section in ("net {", "disk {"):
        assert lines[lines.index(section) + 1].startswith("# ")


def test_an_address_of_version_6_is_written_as_drbd_wants_it() -> None:
    read = inventory()
    hosts = tuple(
        dataclasses.replace(host, replication=f"fd00::{number}")
        for number, host in enumerate(read.hosts)
    )
    resource = written("db1", dataclasses.replace(read, hosts=hosts))["/etc/drbd.d/mb1.res"]
    assert "address ipv6 [fd00::0]:7789;" in resource


def test_each_host_fences_the_other_by_the_second_network() -> None:
    read = inventory(power="/usr/local/bin/pdu")
    fence = written("db1", read)["/etc/messagebus/mirrors/mb1.fence"].splitlines()
    assert fence[1:] == [
        "PEER_NAME='db2'",
        "PEER_ADDRESS='10.0.0.2'",
        "PEER_POWER='/usr/local/bin/pdu'",
    ]


def test_programs_are_there_and_may_be_run() -> None:
    read = inventory()
    found = files(read, read.mirror("mb1"), read.host("db1"))
    programs = [each for each in found if str(each.path).startswith(PROGRAMS)]
    assert {each.path.name for each in programs} == {
        path.name for path in (Path(__file__).parents[4] / "ops" / "mirror" / "on_host").iterdir()
    }
    assert {each.mode for each in programs} == {0o755}
    assert all(each.text.startswith("#!/bin/sh\n") for each in programs)


def test_a_broker_does_not_start_beside_the_data_of_another_node(tmp_path: Path) -> None:
    def start() -> subprocess.CompletedProcess[str]:
        program = Path(__file__).parents[4] / "ops" / "mirror" / "on_host" / "same-node"
        return subprocess.run([program, tmp_path], capture_output=True, text=True)

    assert start().returncode == 0  # a new disk
    (tmp_path / "mnesia" / "mb1@localhost").mkdir(parents=True)
    refused = start()
    assert refused.returncode == 1
    assert refused.stderr.startswith("the disk is of node mb1@localhost, and here RabbitMQ would")


def test_the_peers_key_opens_nothing_but_its_fencing() -> None:
    read = inventory()
    line = authorized_line(read.host("db2"), "ssh-ed25519 AAAA root@db2\n")
    assert line == (
        f'restrict,command="{PROGRAMS}/outdate-mirror" ssh-ed25519 AAAA messagebus-fence-db2'
    )


def test_a_proof_of_death_is_forgotten_at_boot_and_is_of_one_host() -> None:
    assert proof_of_death("mb1", "db1") == "/run/messagebus/dead/mb1.db1"


def test_the_partner_is_the_other_host() -> None:
    read = inventory()
    assert partner(read, read.mirror("mb1"), read.host("db1")).name == "db2"
    assert partner(read, read.mirror("mb1"), read.host("db2")).name == "db1"
