from __future__ import annotations

from pathlib import Path

import pytest

from ops.commands import hosts

FOLDER = Path("/var/lib/rabbitmq")
DEVICE = Path("/dev/drbd0")


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (hosts.erase(Path("/dev/sdb")), "wipefs --all --quiet /dev/sdb"),
        (hosts.has_file_system(DEVICE), "blkid -p /dev/drbd0"),
        (hosts.make_file_system(DEVICE), "mkfs.ext4 -q /dev/drbd0"),
        (hosts.check_disk(DEVICE), "/usr/local/lib/messagebus/check-disk /dev/drbd0"),
        (hosts.is_mounted(FOLDER), "mountpoint -q /var/lib/rabbitmq"),
        (hosts.node_name(), "sed -n s/^NODENAME=//p /etc/rabbitmq/rabbitmq-env.conf"),
        (
            hosts.hand_over_cookie(FOLDER),
            "install -m 400 -o messagebus -g messagebus /var/lib/rabbitmq/.erlang.cookie"
            " /etc/messagebus/cookie",
        ),
        (
            hosts.agent_folder(FOLDER),
            "install -d -o messagebus -g messagebus -m 750 /var/lib/rabbitmq/messagebus",
        ),
        (
            hosts.mount_state(FOLDER),
            "mount --bind /var/lib/rabbitmq/messagebus /var/lib/messagebus",
        ),
        (hosts.unmount_state(), "umount /var/lib/messagebus"),
        (hosts.same_node(FOLDER), "/usr/local/lib/messagebus/same-node /var/lib/rabbitmq"),
        (hosts.mount(DEVICE, FOLDER), "mount /dev/drbd0 /var/lib/rabbitmq"),
        (hosts.unmount(FOLDER), "umount /var/lib/rabbitmq"),
        (hosts.close_mount_point(FOLDER), "install -d -o root -g root -m 555 /var/lib/rabbitmq"),
        (
            hosts.broker_folder(FOLDER),
            "install -d -o rabbitmq -g rabbitmq -m 750 /var/lib/rabbitmq",
        ),
        (hosts.settle(FOLDER), "/usr/local/lib/messagebus/settle /var/lib/rabbitmq"),
        (
            hosts.address("take", "10.0.0.9/24"),
            "/usr/local/lib/messagebus/move-address take 10.0.0.9/24",
        ),
        (hosts.service("start", hosts.BROKER_UNIT), "systemctl start rabbitmq-server"),
        (hosts.disable("a", "b"), "systemctl disable a b"),
        (hosts.say_dead("/run/x"), "install -D -m 600 /dev/null /run/x"),
        (hosts.forget_death("/run/x"), "rm -f /run/x"),
        (hosts.power("/usr/bin/pdu", "off", "db1"), "/usr/bin/pdu off db1"),
    ],
)
def test_each_order_is_one_command(argv: tuple[str, ...], typed: str) -> None:
    assert list(argv) == typed.split()
