from __future__ import annotations

import dataclasses
import re
import subprocess
import tomllib
from pathlib import Path

from inventory.inventory import Inventory, parse
from ops.mirror.files import PROGRAMS, authorized_line, files, partner, proof_of_death
from tests.support.mirrors import mirrored_inventory

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}


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
