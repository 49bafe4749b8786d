"""Commands of steps, options of playbooks, and the inventory that they write."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from inventory.serving import FORCE
from messagebus.tools.moving import MessagesMoved
from ops.__main__ import main
from ops.cluster.agents import Agents
from ops.cluster.balancers import Balancers
from ops.cluster.brokers import Brokers
from ops.cluster.management import Queue
from ops.errors import OpsError
from ops.local import files, secrets
from ops.local.layout import Layout
from ops.playbooks import step_commands
from ops.playbooks.inventory_text import broker_table, with_broker, with_value, without_broker

TEXT = """\
cluster = "prod"

[[brokers]]
name = "mb1"
address = "a:1"

[[brokers]]
name = "mb2"
address = "b:1"
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    file = tmp_path / "inventory.toml"
    file.write_text(TEXT)
    return file


def test_a_broker_that_was_dropped_and_kept_is_put_back(inventory: Path, tmp_path: Path) -> None:
    kept, where = tmp_path / "journal" / "mb1.toml", ["--inventory", str(inventory)]
    drop = ["inventory", "drop", "mb1", "--keep", str(kept), *where]
    assert main(drop) == 0
    assert "mb1" not in inventory.read_text()
    # Taken up again after an interruption, what was kept is still there.
    assert main(drop) == 0
    assert main(["inventory", "put", str(kept), *where]) == 0
    assert main(["inventory", "put", str(kept), *where]) == 0
    assert inventory.read_text().count('name = "mb1"\naddress = "a:1"') == 1


def test_a_version_that_was_installed_is_the_inventorys(inventory: Path) -> None:
    where = ["--inventory", str(inventory)]
    assert main(["inventory", "version", "mb2", "4.0.5-1", *where]) == 0
    assert main(["inventory", "version", "mb2", "4.3.1-1", *where]) == 0
    brokers = tomllib.loads(inventory.read_text())["brokers"]
    assert [each.get("version") for each in brokers] == [None, "4.3.1-1"]


def test_what_was_not_kept_is_told(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", "put", "/none", "--inventory", str(inventory)]) == 2
    assert "/none" in capsys.readouterr().err


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """An inventory of four brokers; the report on each, a reason or "" for ready, and on the move."""
    layout = Layout(dir=tmp_path, numbers=(1, 2, 3, 4))
    layout.inventory.write_text(files.inventory_toml(layout))
    layout.list_file.parent.mkdir()
    listed = "".join(f"127.0.0.{10 + number}:5672\n" for number in (1, 2, 3, 4))
    layout.list_file.write_text(f"# generation: 1\n{listed}")
    told: dict[str, Any] = {"mb2": "", "mb3": "", "mb4": ""}

    def health(_agents: Agents, name: str) -> dict[str, str]:
        return {"verdict": "drain" if told[name] else "ready", "reason": told[name]}

    def move(_bus: object, queues: Iterable[str], **asked: Any) -> MessagesMoved:
        told["targets"] = asked["targets"]
        return MessagesMoved({(queue, "x"): 1 for queue in queues})

    monkeypatch.setattr(Agents, "health", health)
    monkeypatch.setattr(Brokers, "queues", lambda *_: [Queue(name="q", messages=1, consumers=0)])
    monkeypatch.setattr("ops.playbooks.step_commands.move_messages", move)
    return layout.inventory, told


@pytest.mark.guarantee("move-remaining")
def test_nothing_is_moved_to_a_broker_that_takes_no_publishes(
    cluster: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker in alarm would confirm nothing."""
    inventory, told = cluster
    told |= {"mb2": "memory alarm", "mb4": "disk alarm"}
    secrets.ensure(inventory.parent / "secrets")
    assert main(["move", "mb1", "--inventory", str(inventory)]) == 0
    assert told["targets"] == ["127.0.0.13:5672"]
    said = capsys.readouterr()
    assert said.err == "nothing is moved to mb2 (memory alarm), mb4 (disk alarm)\n"
    assert "moved 1 message of 1 queue" in said.out
    told["mb3"] = "memory alarm"
    assert main(["move", "mb1", "--inventory", str(inventory)]) == 1
    assert capsys.readouterr().err.endswith(": no other broker takes publishes\n")


def test_publishers_are_not_held_back_from_the_last_broker_that_takes_them_unless_that_is_forced(
    cluster: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inventory, told = cluster
    told |= {"mb1": "", "mb2": "held", "mb3": "held"}
    held: list[str] = []
    monkeypatch.setattr(step_commands, "set_draining", lambda _i, n, **_: held.append(n.name))
    sent = {"lb": frozenset({"mb1", "mb2", "mb3"})}
    monkeypatch.setattr(Balancers, "sending", lambda _self: sent)
    where = ["--inventory", str(inventory)]
    assert main(["hold", "mb1", *where]) == 1
    said = capsys.readouterr().err
    assert "mb1 is not taken out: 0 other brokers take publishes, 1 must: mb2: held" in said
    assert "mb4: lb sends no publishers there" in said
    assert held == []
    assert main(["hold", "mb1", FORCE, *where]) == 0
    # One that takes none itself is no loss, and one that is on no list yet.
    assert main(["hold", "mb2", *where]) == 0
    listed = inventory.parent / "consumer_lists" / "local.txt"
    listed.write_text(listed.read_text().replace("127.0.0.11:5672\n", ""))
    assert main(["hold", "mb1", *where]) == 0
    assert held == ["mb1", "mb2", "mb1"]


@pytest.mark.parametrize("words", [["remove"], ["upgrade"], ["restart"]], ids=str)
def test_a_broker_off_the_list_is_refused_with_the_way_back(
    words: list[str], cluster: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    inventory, told = cluster
    told["mb1"] = ""
    listed = inventory.parent / "consumer_lists" / "local.txt"
    listed.write_text(listed.read_text().replace("127.0.0.12:5672\n", ""))
    assert main([*words, "mb2", "--yes", "--inventory", str(inventory)]) == 2
    said = capsys.readouterr().err
    assert "mb2 is off the list" in said
    assert "`python -m ops add mb2`" in said


@pytest.fixture
def local_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The inventory of a local cluster of which nothing runs."""
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(files.inventory_toml(layout))
    layout.state_file.write_text(layout.to_json())
    layout.list_file.parent.mkdir()
    layout.list_file.write_text("# generation: 1\n127.0.0.11:5672\n127.0.0.12:5672\n")
    monkeypatch.setattr("ops.cluster.absent._is_ended", lambda *_: True)
    return layout.inventory


def run(local_inventory: Path, *words: str) -> int:
    return main([*words, "--inventory", str(local_inventory)])


def test_a_new_local_broker_gets_the_address_of_its_number(
    local_inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(local_inventory, "add", "mb7", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "add 127.0.0.17:5672 --agent-port 8081" in printed
    assert f"ops local provision mb7 --dir {local_inventory.parent}" in printed


def test_a_dry_run_leaves_no_trace(local_inventory: Path) -> None:
    assert run(local_inventory, "remove", "mb2", "--dry-run") == 0
    gone = ("replace", "mb2", "--dead", "mb2", "--lose-messages", "--dry-run")
    assert run(local_inventory, *gone) == 0
    assert not (local_inventory.parent / "journal").exists()


@pytest.mark.parametrize(
    ("words", "version"),
    [
        (("upgrade", "mb2"), "3.10.8-1.1"),
        (("upgrade", "mb2", "--to", "4.0.5-1"), "4.0.5-1"),
        (("replace", "mb2", "--lose-messages"), "3.10.8-1.1"),
    ],
)
def test_the_version_that_is_installed_is_the_inventorys_unless_another_is_said_and_is_written_there(
    local_inventory: Path,
    words: tuple[str, ...],
    version: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = local_inventory.read_text().replace('supervisor = "local"', 'supervisor = "systemd"')
    pinned = 'name = "mb2"\nversion = "3.10.8-1.1"'
    local_inventory.write_text(text.replace('name = "mb2"', pinned))
    assert run(local_inventory, *words, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert f"install rabbitmq-server={version}" in printed
    if words[0] == "upgrade":
        assert f"inventory version mb2 {version}" in printed
        assert printed.index("--simulate") < printed.index(" lb --inventory")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("add", "mb1"),
            (2, "mb1 is on the list already: `python -m ops check` names what is wrong with it"),
        ),
        (("remove", "mb9"), (2, "no broker 'mb9' in the inventory")),
        (
            ("replace", "mb1", "--dead", "db1"),
            (2, "mb1 has no mirror that could take over: use --lose-messages"),
        ),
        (
            ("replace", "mb1", "--lose-messages", "--dead", "db1"),
            (2, "mb1 has no mirror that could take over: db1 is neither a broker nor a balancer"),
        ),
        (
            ("upgrade", "mb2", "--to", "4.0.5-1"),
            (2, "--to 4.0.5-1: a local cluster can run 3.10, 4.0, 4.3"),
        ),
        (("restart", "mb1", "mb2", "mb1"), (2, "named twice: mb1")),
        (("restart", "mb1", "127.0.0.11:5672"), (2, "named twice: mb1")),
        (("add", "mb3", "--undo", "--yes"), (1, "no unfinished run of 'add mb3' to take back")),
    ],
)
def test_what_cannot_be_done_is_one_line_and_has_its_exit_code(
    local_inventory: Path,
    words: tuple[str, ...],
    said: tuple[int, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, why = said
    assert run(local_inventory, *words) == code
    assert why in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_nothing_is_done_without_a_yes(
    local_inventory: Path,
    answer: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert run(local_inventory, "remove", "mb2") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("not confirmed; nothing was done. --yes does not ask")


def test_wrong_use_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add"]) == 2
    assert main(["local", "kill", "mb1", "--signal", "HUP"]) == 2
    assert main(["nothing"]) == 2


@pytest.mark.parametrize("words", [[], ["local"], ["add"], ["remove"], ["local", "up"], ["hangup"]])
def test_every_command_has_help_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    assert "Example:" in capsys.readouterr().out


def test_a_broker_is_dropped_from_the_inventory(local_inventory: Path) -> None:
    assert run(local_inventory, "inventory", "drop", "mb1") == 0
    assert 'name = "mb1"' not in local_inventory.read_text()
    assert 'name = "mb2"' in local_inventory.read_text()


COMMENTED = """\
cluster = "local"  # ours
[balancer]
amqp = "a:1"

[[brokers]]
name = "mb1"
address = "a:1"

[[brokers]]
# the big one
name = "mb2"
address = "b:1"

[[ brokers ]]
name = "mb3"
"""


@pytest.mark.parametrize("name", ["mb1", "mb2", "mb3"])
def test_one_broker_is_taken_out_and_the_rest_says_the_same(name: str) -> None:
    edited = without_broker(COMMENTED, name)
    before, after = tomllib.loads(COMMENTED), tomllib.loads(edited)
    assert [one["name"] for one in after["brokers"]] == [
        one["name"] for one in before["brokers"] if one["name"] != name
    ]
    assert after["balancer"] == before["balancer"]
    assert "# ours" in edited


def test_the_last_broker_can_be_taken_out() -> None:
    text = without_broker(without_broker(without_broker(COMMENTED, "mb1"), "mb3"), "mb2")
    assert "brokers" not in tomllib.loads(text)


@pytest.mark.parametrize("name", ["mb1", "mb2", "mb3"])
@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
def test_every_comment_outside_of_a_table_stays(name: str, gap: str) -> None:
    text = "# the cluster\n" + "\n".join(
        f'{gap}# above mb{number}\n  # and: [[brokers]]\n[[brokers]]  # header\nname = "mb{number}"\n'
        f"# inside\nport = {number}  # the port\n{gap}# below mb{number}\n"
        for number in (1, 2, 3)
    )
    before, after = text.splitlines(), without_broker(text, name).splitlines()
    for comment in [
        line for line in before if line.lstrip().startswith("# ") and "inside" not in line
    ]:
        assert after.count(comment) == before.count(comment)
    assert after.count("# inside") == 2
    assert [one["name"] for one in tomllib.loads("\n".join(after))["brokers"]] == [
        each for each in ("mb1", "mb2", "mb3") if each != name
    ]


def test_a_text_of_many_lines_that_looks_like_comments_is_not_cut() -> None:
    text = '[[brokers]]\nname = "mb1"\nnote = """\n# not one\n"""\n\n# mine\n'
    assert without_broker(text, "mb1") == "\n# mine\n"
    with pytest.raises(OpsError, match="edit the file"):
        without_broker('[[brokers]]\nname = "mb1"\nnote = """\n[x]"""\n', "mb1")


def test_an_unknown_broker_changes_nothing() -> None:
    assert without_broker(COMMENTED, "mb9") == COMMENTED


def test_what_cannot_be_edited_surely_is_not_edited() -> None:
    with pytest.raises(OpsError, match="edit the file"):
        without_broker('brokers = [{name = "mb1"}, {name = "mb2"}]', "mb1")


def test_a_broker_is_moved_and_nothing_else_is_touched() -> None:
    text = (
        'cluster = "c"  # ours\n\n[[brokers]]\nname = "mb1"\nhost = "db1"\n\n'
        '[[brokers]]\nname = "mb2"\n\n[[hosts]]\nname = "mb1"\n'
    )
    moved = with_value(text, "mb1", "host", "db2")
    assert moved == text.replace("db1", "db2")
    given = with_value(text, "mb2", "host", "db2")
    assert given == text.replace(
        '[[brokers]]\nname = "mb2"', '[[brokers]]\nhost = "db2"\nname = "mb2"'
    )
    assert with_value(text, "mb1", "host", "db1") == with_value(text, "mb9", "host", "db1") == text


def test_a_broker_that_is_written_in_another_way_is_not_guessed_at() -> None:
    with pytest.raises(OpsError, match="edit the file"):
        with_value('brokers = [{name = "mb1"}]', "mb1", "host", "db2")


@pytest.mark.parametrize("name", ["mb1", "mb2", "mb3"])
def test_what_was_taken_out_is_put_back(name: str) -> None:
    table = broker_table(COMMENTED, name)
    again = tomllib.loads(with_broker(without_broker(COMMENTED, name), table))
    assert sorted(map(str, again["brokers"])) == sorted(
        map(str, tomllib.loads(COMMENTED)["brokers"])
    )


def test_putting_back_twice_changes_nothing() -> None:
    assert with_broker(COMMENTED, broker_table(COMMENTED, "mb2")) == COMMENTED
    assert broker_table(COMMENTED, "mb9") == ""


@pytest.mark.parametrize(
    "table",
    [
        "",
        "[[brokers]]\n",
        "brokers = 1",
        "[[brokers]",
        "[[brokers]]\nname='a'\n[[brokers]]\nname='b'",
    ],
)
def test_what_is_no_table_of_a_broker_is_refused(table: str) -> None:
    with pytest.raises(OpsError, match="not one"):
        with_broker(COMMENTED, table)


def test_a_broker_goes_with_its_mirror() -> None:
    mirror = '\n[[mirrors]]\nname = "mb2"\nport = 7788\n\n[[mirrors]]\nname = "mb3"\n'
    left = tomllib.loads(without_broker(COMMENTED + mirror, "mb2"))
    assert left["mirrors"] == [{"name": "mb3"}]
    assert [each["name"] for each in left["brokers"]] == ["mb1", "mb3"]
