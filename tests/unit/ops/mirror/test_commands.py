"""Exact commands on a host of a mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.mirror import commands


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
