"""python -m consumer_lists: exit codes, errors in one line, and output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from consumer_lists import __main__ as command
from consumer_lists import listfile
from consumer_lists import push as pushing
from inventory import shell
from inventory.errors import CommandFailed
from inventory.serving import FORCE
from tests.support.agents_http import AgentsHttp

INVENTORY = """
cluster = "prod"
list_file = "prod.txt"
token_file = "token"
admin_user = "admin"
admin_password_file = "admin"
supervisor = "local"
[balancer]
amqp = "lb:5672"
list = "lb:8081"
stats = "lb:8404"
config = "haproxy.cfg"
socket = "admin.sock"
state_file = "state"
master_pid_file = "pid"
probe_user = "probe"
probe_password_file = "probe"
[[brokers]]
name = "a"
address = "a:5672"
agent = "a:8081"
check = "a:8082"
management = "a:15672"
node_list_file = "a.txt"
"""
HOSTS = """
[[hosts]]
name = "one"
ssh = "a1"
replication = "10.1.0.1"
management = "10.2.0.1"
[[hosts]]
name = "two"
ssh = "a2"
replication = "10.1.0.2"
management = "10.2.0.2"
[[mirrors]]
name = "a"
hosts = ["one", "two"]
device = "/dev/drbd0"
disk = "/dev/vdb"
mount = "/var/lib/rabbitmq"
port = 7789
"""
TEXT = "# cluster: prod\n# generation: 7\nmb1\nmb2\n"


@pytest.fixture(autouse=True)
def http(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AgentsHttp:
    (tmp_path / "inventory.toml").write_text(INVENTORY)
    (tmp_path / "prod.txt").write_text(TEXT)
    monkeypatch.setenv("MESSAGEBUS_INVENTORY", str(tmp_path / "inventory.toml"))
    monkeypatch.setattr(pushing, "POLL_S", 0)
    monkeypatch.setattr(listfile, "advice", lambda path, said: f"keep {path.name}: {said}")
    http = AgentsHttp(monkeypatch)
    http.answers = {"a:8081/consumer-list": TEXT, "a:8081/clients": '{"clients": [], "left": []}'}
    return http


def run(*words: str) -> Result:
    return CliRunner().invoke(command.cli, list(words), prog_name="python -m consumer_lists")


def test_edits_and_their_generations(tmp_path: Path) -> None:
    for words, generation in (
        (("add", "a:5672", "--agent-port", "8081"), 8),
        (("drain", "mb1:5672", FORCE), 9),
        (("ready", "mb1:5672"), 10),
        (("remove", "mb2:5672", FORCE), 11),
    ):
        assert run(*words).output.startswith(f"generation {generation}, ")
    assert (tmp_path / "prod.txt").read_text() == (
        "# cluster: prod\n# generation: 11\nmb1:5672\na:5672\n"
    )


def test_a_broker_is_named_by_its_name_or_its_address_and_told_by_both(tmp_path: Path) -> None:
    inventory = INVENTORY.replace('name = "a"', 'name = "db7"').replace("8081", "99")
    (tmp_path / "inventory.toml").write_text(inventory)
    added = run("add", "db7")
    assert added.output.startswith("generation 8, 3 brokers; changed db7 (a:5672), not pushed yet")
    assert "a:5672 agent=99" in (tmp_path / "prod.txt").read_text()
    drained = run("drain", "a:5672", FORCE)
    assert drained.output.startswith("generation 9, 3 brokers; changed db7 (a:5672)")
    removed = run("remove", "mb1", FORCE)
    assert removed.output.startswith("generation 10, 2 brokers; changed mb1:5672, ")


@pytest.mark.parametrize("word", ["drain", "remove"])
def test_the_last_broker_that_takes_publishes_leaves_no_list_unless_that_is_forced(
    word: str, http: AgentsHttp, tmp_path: Path
) -> None:
    second = INVENTORY.partition("[[brokers]]")[2].replace("a:", "mb1:").replace('"a', '"mb1')
    (tmp_path / "inventory.toml").write_text(f"serving_min = 1\n{INVENTORY}[[brokers]]{second}")
    (tmp_path / "prod.txt").write_text("# cluster: prod\n# generation: 7\nmb1\na\n")
    ready, held = '{"verdict": "ready"}', '{"verdict": "drain", "reason": "operators drain it"}'
    for other in (held, None):
        http.answers |= {"mb1:8081/health": ready}
        http.answers |= {"a:8081/health": other} if other else {}
        refused = run(word, "mb1")
        assert refused.exit_code == 1
        assert "mb1 (mb1:5672) is not taken out: 0 other brokers take publishes" in refused.stderr
        assert f"do it all the same with {FORCE}" in refused.stderr
        # One that takes none itself is no loss.
        if other:
            assert run(word, "a").exit_code == 0
            (tmp_path / "prod.txt").write_text("# cluster: prod\n# generation: 7\nmb1\na\n")
        http.answers.pop("a:8081/health", None)
    http.answers["a:8081/health"] = ready
    assert run(word, "mb1").exit_code == 0
    if word == "drain":
        assert "is not taken out" in run(word, "a").stderr
        assert run(word, "a", FORCE).exit_code == 0


def test_in_a_list_alone_one_broker_is_left_that_is_not_draining(tmp_path: Path) -> None:
    path = str(tmp_path / "prod.txt")
    assert run("--file", path, "drain", "mb1").exit_code == 0
    assert "mb2:5672 is not taken out" in run("--file", path, "remove", "mb2").stderr
    assert run("--file", path, "remove", "mb2", FORCE).exit_code == 0


@pytest.mark.parametrize(("word", "meant"), [("db8", "db7"), ("a:5673", "a:5672"), ("zzz", "")])
def test_an_unknown_broker_is_refused_with_the_one_that_may_be_meant(
    word: str, meant: str, tmp_path: Path
) -> None:
    (tmp_path / "inventory.toml").write_text(INVENTORY.replace('name = "a"', 'name = "db7"'))
    refused = run("drain", word)
    hint = f"; did you mean {meant!r}?" if meant else ""
    assert refused.exit_code == 1
    assert refused.stderr.endswith(f"is not on the list: mb1:5672, mb2:5672{hint}\n")


def test_a_file_needs_no_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESSAGEBUS_INVENTORY")
    monkeypatch.chdir(tmp_path / "..")
    path = str(tmp_path / "prod.txt")
    assert run("--file", path, "add", "mb3").exit_code == 0
    assert run("--file", path, "check").output == "good: generation 8, 3 brokers\n"
    assert json.loads(run("--file", path, "show", "--json").output)["nodes"] == []


def test_a_bad_line_is_told_by_number_and_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "prod.txt").write_text("mb1\nmb2 drainin\n")
    checked = run("check")
    assert checked.exit_code == 7
    assert checked.stderr.startswith(
        f"consumer_lists: {tmp_path / 'prod.txt'}: line 2: unknown attribute"
    )
    assert checked.stderr.count("\n") == 1


def test_a_refused_edit_is_one_line_with_exit_code_1() -> None:
    run("add", "a:5672")
    refused = run("add", "a:5672")
    assert (refused.exit_code, refused.stderr) == (1, "consumer_lists: a:5672 is on the list\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", "b:5672"), "no broker 'b:5672'"),
        (("add", "a:5673"), "no broker 'a:5673'"),
        (("add", "a:5672", "--agent-port", "99"), "the agent of a:5672 is a:8081 in the inventory"),
    ],
)
def test_what_the_inventory_does_not_have_comes_on_no_list(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    refused = run(*words)
    assert refused.exit_code in (1, 2)
    assert refused.stderr.startswith("consumer_lists: ")
    assert why in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert (tmp_path / "prod.txt").read_text() == TEXT


def test_the_port_of_an_agent_is_that_of_the_inventory(tmp_path: Path) -> None:
    text = INVENTORY.replace("a:8081", "a:9081")
    (tmp_path / "inventory.toml").write_text(text)
    assert run("add", "a:5672").exit_code == 0
    assert "a:5672 agent=9081\n" in (tmp_path / "prod.txt").read_text()


@pytest.mark.parametrize("words", [("add", "mb1:0"), ("add", "-"), ("drop", "mb1"), ("add",)])
def test_wrong_use_has_exit_code_2(words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


def test_a_push_that_is_served(tmp_path: Path) -> None:
    assert (
        run("push").output
        == "generation 7 is served by 1 of 1 nodes\nkeep prod.txt: prod: generation 7\n"
    )
    assert (tmp_path / "a.txt").read_text() == TEXT


def test_a_push_that_nobody_serves_says_that_nobody_answered(http: AgentsHttp) -> None:
    http.answers = {}
    pushed = run("push", "--within-s", "0")
    assert (pushed.exit_code, pushed.stderr) == (6, "a differs: Connection refused\n")


def test_a_jump_is_of_a_recovery_alone() -> None:
    pushed = run("push", "--jump")
    assert (pushed.exit_code, "--jump: only with --recover" in pushed.stderr) == (2, True)


def test_recovering_raises_the_generation_and_tells_who_was_not_asked(http: AgentsHttp) -> None:
    http.answers["a:8081/consumer-list"] = TEXT.replace("7", "30")
    del http.answers["a:8081/clients"]
    recovered = run("push", "--recover", "--within-s", "0")
    assert "generation 31 is served by 0 of 1 nodes" in recovered.output
    assert "a may know a newer generation and was not asked: Connection" in recovered.stderr


class FakeRemote:
    """SSH to every host but those that are down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: dict[tuple[str, str], str] = {}
        self.down: set[str] = set()
        monkeypatch.setattr(shell, "remote", self._remote)

    @contextmanager
    def _remote(self, host: str) -> Iterator[FakeRemote]:
        self.host = host
        yield self

    def write(self, path: Path, text: str, *, sudo: bool) -> None:
        if self.host in self.down:
            raise CommandFailed(["dd"], 127, "SSH: no route", self.host)
        self.written[self.host, str(path)] = text


@pytest.mark.parametrize("down", [set(), {"a1"}, {"a2"}])
def test_a_mirrored_node_s_list_is_on_both_of_its_hosts_as_far_as_they_are_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, down: set[str]
) -> None:
    (tmp_path / "inventory.toml").write_text(INVENTORY.replace('"a.txt"', '"/etc/a.txt"') + HOSTS)
    far = FakeRemote(monkeypatch)
    far.down = down
    assert run("push").exit_code == 0
    assert far.written == {(host, "/etc/a.txt"): TEXT for host in {"a1", "a2"} - down}


def test_a_node_that_ssh_does_not_reach_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inventory.toml").write_text(INVENTORY + HOSTS)
    FakeRemote(monkeypatch).down = {"a1", "a2"}
    pushed = run("push")
    assert pushed.exit_code == 6
    assert "a differs: not written: dd on a1: exit code 127: SSH: no route; dd" in pushed.stderr


def test_a_push_takes_no_file() -> None:
    assert run("--file", "x", "push").exit_code == 2


def test_a_client_that_is_behind_is_a_difference(http: AgentsHttp) -> None:
    client = {
        "id": "b-1",
        "subscription": "orders/billing",
        "applied": 6,
        "age_s": 4,
        "waits": True,
    }
    http.answers["a:8081/clients"] = json.dumps({"clients": [client], "left": []})
    differs = run("diff")
    assert (differs.exit_code, differs.output) == (
        7,
        "client b-1 of orders/billing: applied 6 instead of 7, heard of 4 s ago\n",
    )


def test_a_difference_is_a_finding(http: AgentsHttp) -> None:
    same = run("diff")
    assert (same.exit_code, same.output) == (0, "all have generation 7: 1 node, 0 clients\n")
    http.answers["a:8081/consumer-list"] = TEXT + "mb3\n"
    differs = run("diff")
    assert (differs.exit_code, differs.output) == (7, "a: has mb3:5672 too\n")


def test_what_is_shown_to_people(http: AgentsHttp) -> None:
    shown = run("show")
    assert "# generation: 7" in shown.output
    assert "same" in shown.output
    assert "no client has asked lately" in shown.output
    http.answers = {}
    assert "clients of a are not known: Connection refused" in run("show").stderr


def test_what_is_shown_to_programs() -> None:
    assert json.loads(run("show", "--json").output)["nodes"][0]["same"] is True
