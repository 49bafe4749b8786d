"""Exactly what runs on a host of a mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.commands import drbd


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (drbd.load_module(), "modprobe drbd"),
        (drbd.create_metadata("mb1"), "drbdadm create-md --force mb1"),
        (drbd.up("mb1"), "drbdadm up mb1"),
        (drbd.down("mb1"), "drbdadm down mb1"),
        (drbd.adjust("mb1"), "drbdadm adjust mb1"),
        (drbd.events("mb1"), "drbdsetup events2 --now --statistics mb1"),
        (drbd.link("mb1"), "drbdadm cstate mb1"),
        (drbd.generations("mb1"), "drbdadm get-gi mb1"),
        (drbd.promote("mb1"), "drbdadm primary mb1"),
        (drbd.promote_first("mb1"), "drbdadm primary --force mb1"),
        (drbd.demote("mb1"), "drbdadm secondary mb1"),
        (drbd.connect("mb1"), "drbdadm connect mb1"),
        (drbd.connect("mb1", discard_my_data=True), "drbdadm connect --discard-my-data mb1"),
        (drbd.disconnect("mb1"), "drbdadm disconnect mb1"),
        (drbd.outdate("mb1"), "drbdadm outdate mb1"),
        (drbd.thaw("mb1"), "drbdadm resume-io mb1"),
        (drbd.clear_bitmap("mb1"), "drbdadm new-current-uuid --clear-bitmap mb1/0"),
        (drbd.verify("mb1"), "drbdadm verify mb1"),
        (drbd.set_rate("mb1", "40M"), "drbdadm disk-options --resync-rate=40M mb1"),
    ],
)
def test_each_order_is_one_command_of_drbd(argv: tuple[str, ...], typed: str) -> None:
    assert list(argv) == typed.split()


def test_signatures_are_looked_at_and_never_erased() -> None:
    argv = drbd.signatures(Path("/dev/sdb"))
    assert argv == ("wipefs", "--no-act", "--noheadings", "--output", "TYPE", "/dev/sdb")
