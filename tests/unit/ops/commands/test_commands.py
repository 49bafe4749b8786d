from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.commands import doors, hosts, kits
from ops.commands.kits import CHECKOUT, kit
from ops.commands.supervise import LocalNodes, SystemdNodes
from ops.run.plan import Command
from ops.run.waiting import START_AT_MOST_S


def test_a_local_node_is_a_part_of_the_local_cluster() -> None:
    nodes = LocalNodes(Path("/c"))
    local = (sys.executable, "-m", "ops", "local")
    assert nodes.provision("mb4") == (Command((*local, "provision", "mb4", "--dir", "/c")),)
    (start,) = nodes.start_broker("mb4")
    assert start.argv == (*local, "start", "mb4", "--dir", "/c")
    assert nodes.stop_agent("mb4") == (Command((*local, "stop", "mb4-agent", "--dir", "/c")),)
    assert nodes.forget("mb4") == (Command((*local, "forget", "mb4", "--dir", "/c")),)


def test_another_node_is_a_host_with_units() -> None:
    nodes = SystemdNodes({"mb4": "mb4.example"})
    assert nodes.provision("mb4") == ()
    start, opened = nodes.start_broker("mb4")
    assert (start.argv, start.host) == (("systemctl", "start", "rabbitmq-server"), "mb4.example")
    assert opened.argv == ("rabbitmqctl", "--quiet", "eval", doors.opened())
    assert nodes.stop_agent("mb4") == (
        Command(("systemctl", "stop", "messagebus-agent"), "mb4.example"),
    )
    cookie, start = SystemdNodes({"mb4": "mb4.example"}, frozenset({"mb4"})).start_agent("mb4")
    assert cookie.argv[:4] == ("sudo", "-n", "--", "install")
    assert cookie.argv[-2:] == ("/var/lib/rabbitmq/.erlang.cookie", "/etc/messagebus/cookie")
    assert start.argv[-2:] == ("start", "messagebus-agent")


def test_a_start_is_ended_by_its_own_patience_and_not_by_the_plan() -> None:
    starts = (
        *LocalNodes(Path("/c")).start_broker("mb4"),
        *LocalNodes(Path("/c")).start_agent("mb4"),
        SystemdNodes({"mb4": "mb4.example"}).start_broker("mb4")[0],
    )
    assert {each.within_s > START_AT_MOST_S for each in starts} == {True}


def test_installing_anew_leaves_nothing_that_the_node_has_learned() -> None:
    *stops, first, second, install, hold = SystemdNodes({"mb4": "mb4.example"}).reinstall(
        "mb4", "3.12.1-1"
    )
    assert [stop.argv[:2] for stop in stops] == [("systemctl", "stop")] * 2
    assert [first.argv, second.argv] == [
        ("find", "/var/lib/rabbitmq/mnesia", "-mindepth", "1", "-delete"),
        ("find", "/var/lib/messagebus", "-mindepth", "1", "-delete"),
    ]
    assert install.argv[-2:] == ("install", "rabbitmq-server=3.12.1-1")
    assert {"--allow-change-held-packages", "--ignore-hold"} < {*install.argv}
    assert hold.argv == ("apt-mark", "hold", "rabbitmq-server", "erlang-base")
    assert {first.host, second.host, install.host, hold.host} == {"mb4.example"}
    local = LocalNodes(Path("/c")).reinstall("mb4", "")
    assert [command.argv[4:6] for command in local] == [("forget", "mb4"), ("provision", "mb4")]


def test_a_local_broker_can_be_made_anew_in_another_version_which_is_fetched_before() -> None:
    nodes = LocalNodes(Path("/c"))
    (fetched,) = nodes.installable("mb4", "4.0")
    assert fetched.argv[3:] == ("local", "fetch", "4.0")
    forgotten, made = nodes.reinstall("mb4", "4.0")
    assert forgotten.argv[4:6] == ("forget", "mb4")
    assert made.argv[4:] == ("provision", "mb4", "--rabbitmq", "4.0", "--dir", "/c")


def test_a_version_is_looked_up_and_installed_on_both_hosts_of_a_mirror() -> None:
    """The other host is the next to run the broker, on data of the new version."""
    nodes = SystemdNodes({"mb4": "db1"}, frozenset(), {"mb4": ("op@db2", True)})
    *updates, first, second = nodes.installable("mb4", "4.0.5-1")
    assert [each.argv[-1] for each in updates] == ["update", "update"]
    assert (first.host, second.host) == ("db1", "op@db2")
    assert all("--simulate" in each.argv for each in (first, second))
    assert {each.argv[-1] for each in (first, second)} == {"rabbitmq-server=4.0.5-1"}
    assert second.argv[:3] == ("sudo", "-n", "--") != first.argv[:3]
    made = nodes.reinstall("mb4", "4.0.5-1")
    assert [each.host for each in made if "install" in each.argv] == ["db1", "op@db2"]
    assert [each.host for each in made if "hold" in each.argv] == ["db1", "op@db2"]
    assert {each.host for each in made if "find" in each.argv} == {"db1"}
    (alone,) = SystemdNodes({"mb4": "db1"}).installable("mb4", "")[1:]
    assert alone.argv[-1] == "rabbitmq-server"
    assert LocalNodes(Path("/c")).installable("mb4", "") == ()


def test_the_files_of_a_broker_are_listed_where_there_may_be_none() -> None:
    argv = LocalNodes(Path("/c")).data("mb4").argv
    assert argv[:5] == ("find", "/c/nodes", "-path", "/c/nodes/mb4/data/*", "-type")
    there = SystemdNodes({"mb4": "mb4.example"}, frozenset({"mb4"})).data("mb4")
    assert there.host == "mb4.example"
    assert there.argv[3:7] == ("find", "/var/lib/rabbitmq", "-path", "/var/lib/rabbitmq/mnesia/*")


def test_the_node_itself_says_who_it_is_and_shuts_its_doors() -> None:
    nodes = SystemdNodes({"mb4": "mb4.example"}, frozenset({"mb4"}))
    for word, expression in (("named", doors.named), ("shut", doors.shut)):
        (command,) = getattr(nodes, word)("mb4", "mb4.example:5672")
        assert command.host == "mb4.example"
        assert command.argv[3:6] == ("rabbitmqctl", "--quiet", "eval")
        assert command.argv[6] == expression("mb4.example:5672")
        assert "\n" not in command.argv[6]
        (local,) = getattr(LocalNodes(Path("/c")), word)("mb4", "127.0.0.14:5672")
        assert local.argv[3:] == ("local", word, "mb4", "127.0.0.14:5672", "--dir", "/c")


def test_whether_a_process_is_left_is_asked_in_the_words_of_systemd() -> None:
    show = ("systemctl", "show", "--property=ActiveState", "--value")
    nodes = SystemdNodes({"mb4": "mb4.example"})
    assert nodes.broker_state("mb4") == Command((*show, "rabbitmq-server"), "mb4.example")
    assert nodes.agent_state("mb4") == Command((*show, "messagebus-agent"), "mb4.example")
    local = LocalNodes(Path("/c"))
    assert local.broker_state("mb4").argv[3:] == ("local", "state", "mb4", "--dir", "/c")[0:]
    assert local.agent_state("mb4").argv[4:6] == ("state", "mb4-agent")


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


FILE = Path("/c/inventory.toml")
PYTHON = (sys.executable, "-m")


def test_the_checkout_holds_the_kits() -> None:
    assert (CHECKOUT / "lb" / "__main__.py").exists()


def test_a_kit_runs_with_this_python() -> None:
    assert kit("lb", "apply") == Command((sys.executable, "-m", "lb", "apply"))


def test_every_kit_is_told_its_inventory() -> None:
    there = ("--inventory", str(FILE))
    assert kits.lb(FILE, "drain", "mb2").argv == (*PYTHON, "lb", *there, "drain", "mb2")
    added = kits.lists(FILE, "add", "a:1", "--agent-port", "9").argv
    assert added == (*PYTHON, "consumer_lists", *there, "add", "a:1", "--agent-port", "9")
    assert kits.ops(FILE, "hold", "mb4").argv == (*PYTHON, "ops", "hold", "mb4", *there)


def test_who_is_dead_is_left_out_by_name_in_one_order() -> None:
    without = ("--without", "lb2", "--without", "lb3")
    assert kits.lb(FILE, "apply", without={"lb3", "lb2"}).argv[-5:] == ("apply", *without)
    assert kits.lists(FILE, "push", without={"lb3", "lb2"}).argv[-5:] == ("push", *without)
