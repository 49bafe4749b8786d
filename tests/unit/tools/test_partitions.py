"""The table of a topic's partitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from messagebus import BusConfig, Subscription, Topic
from messagebus.__main__ import cli
from messagebus._io.agents.subscriptions import SubscriptionCount, SubscriptionCounts
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.commands.exits import Exit
from messagebus.errors import LinkLost, NotFound
from messagebus.observing.snapshot import chains_in
from messagebus.secret import Secret
from messagebus.tools import partitions
from messagebus.tools.partitions import rows_of, spread
from messagebus.topology import Wanted

ONE, TWO = "mb1:5672", "mb2:5672"
BUS = BusConfig(broker="mb1", list_urls=("http://mb1:8081/consumer-list",))
LISTED = BrokerList(listed=tuple(ListedBroker(broker=Broker.parse(each)) for each in (ONE, TWO)))
ORDERS = Topic("orders", partitions=3, homes=f"{ONE} 2@{TWO}")


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [ORDERS, Topic("plain"), Subscription(ORDERS, "billing")]

    async def count(_bus: BusConfig, _brokers: BrokerList) -> SubscriptionCounts:
        counts = tuple(
            SubscriptionCount(
                name=f"orders/{name}",
                broker=ONE,
                ready=5,
                consumers=1,
                segments={"0.1": waiting, "2.1": 0},
            )
            for name, waiting in (("billing", 5), ("audit", 7))
        )
        return SubscriptionCounts(counts, unanswered={TWO: "no answer"}, answered=(ONE,))

    monkeypatch.setattr(partitions, "topology", topology)
    monkeypatch.setattr(partitions, "count", count)


async def test_each_partition_has_its_home_and_what_waits_there() -> None:
    rows = await rows_of(BUS, LISTED, "orders")
    assert [(row.partition, row.home, row.epoch) for row in rows] == [
        (0, ONE, 1),
        (1, TWO, 2),
        (2, ONE, 1),
    ]
    assert rows[0].waiting == {"billing": 5, "audit": 7}
    assert (rows[1].waiting, rows[1].fault) == ({}, "no answer")


async def test_one_subscription_is_shown_alone() -> None:
    rows = await rows_of(BUS, LISTED, "orders/billing")
    assert [dict(row.waiting) for row in rows] == [{"billing": 5}, {}, {"billing": 0}]


@pytest.mark.parametrize("name", ["plain", "nothing"])
async def test_a_topic_without_partitions_is_not_found(name: str) -> None:
    with pytest.raises(NotFound, match=f"no topic {name} with partitions"):
        await rows_of(BUS, LISTED, name)


def test_partitions_are_spread_with_the_fewest_moves() -> None:
    assert spread(["a", "a", "a", "a", "b", "a"], ["a", "b", "c"]) == {2: "c", 3: "b", 5: "c"}
    assert spread(["a", "b", "a", "b"], ["a", "b", "c"]) == {3: "c"}
    assert spread(["a", "b", "c"], ["a", "b", "c"]) == {}
    assert spread(["gone", "a"], ["a", "b"]) == {0: "b"}


def test_from_one_broker_only_its_own_move() -> None:
    assert spread(["a", "b", "b", "a"], ["a", "b", "c"], away="a") == {0: "c", 3: "c"}
    assert spread(["a"], ["a"], away="a") == {}


def test_what_agents_know_of_a_move_is_put_together() -> None:
    def entry(homes: str) -> dict[str, object]:
        return {"wanted": "orders", "alive": True, "homes": homes, "partitions": 2}

    other = {"wanted": "orders/billing", "alive": True, "partitions": 2}
    chains = chains_in([entry(f"{ONE} {TWO}"), other, entry(f"{ONE}>2@{TWO} {TWO}")])
    assert [len(each.homes) for each in chains["orders"]] == [2, 1]
    assert list(chains) == ["orders"]


async def test_a_partition_that_moves_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [replace(ORDERS, homes=f"{ONE}>2@{TWO} {ONE},2@{TWO} {ONE}")]

    monkeypatch.setattr(partitions, "topology", topology)
    rows = await rows_of(BUS, LISTED, "orders/billing")
    assert [row.moving for row in rows] == [
        f"moves from {ONE}, which takes its publishes",
        f"what is left on {ONE} comes first",
        "",
    ]
    assert rows[0].waiting == {"billing": 5}


async def test_what_was_lost_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [replace(ORDERS, homes=f"3@{ONE}/!{TWO} {ONE} {ONE}")]

    monkeypatch.setattr(partitions, "topology", topology)
    rows = await rows_of(BUS, LISTED, "orders")
    assert [row.lost for row in rows] == [(f"1@{TWO}",), (), ()]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """The commands, with a token and a list of two brokers."""
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr(partitions, "bus_settings", lambda: BUS)
    monkeypatch.setattr(partitions, "listed_brokers", lambda _bus: LISTED)
    monkeypatch.setenv("MESSAGEBUS_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("MESSAGEBUS_LIST_URL", BUS.list_urls[0])
    return lambda *words: CliRunner().invoke(cli, ["partitions", *words])


def test_partitions_are_shown_and_a_home_that_does_not_answer_ends_with_3(
    command: Callable[..., Result],
) -> None:
    done = command("show", "orders/billing")
    assert done.exit_code == Exit.PARTLY
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["PARTITION", "HOME", "EPOCH", "WAITING"],
        ["0", ONE, "1", "billing=5"],
        ["1", TWO, "2", "no", "answer"],
        ["2", ONE, "1", "billing=0"],
    ]
    rows = json.loads(command("show", "orders", "--json").stdout)
    assert [(row["home"], row["fault"]) for row in rows] == [
        (ONE, ""),
        (TWO, "no answer"),
        (ONE, ""),
    ]


def test_moves_that_are_refused_and_late_are_told(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[int, str]]] = []

    async def move(_bus: Any, at: ListedBroker, _topic: str, to: Any, *, token: Secret) -> Any:
        asked.append((at.broker.name, dict(to)))
        if at.broker.name == TWO:
            raise LinkLost(TWO, "connection refused")
        return {2: "it moves already"}

    monkeypatch.setattr(partitions, "move", move)
    done = command("move", "orders", "0", "1", "2", "9", "--to", TWO, "--within-s", "0")
    assert done.exit_code == Exit.PARTLY
    assert asked == [(ONE, {0: TWO, 2: TWO}), (TWO, {1: TWO})]
    assert done.stderr.splitlines() == [
        f"partition 1 of orders is not moved: its home {LinkLost(TWO, 'connection refused')}",
        "partition 2 of orders is not moved: it moves already",
        "partition 9 of orders is not moved: orders has 3 partitions",
    ]
    assert done.stdout == "moved 1 partition of orders\n"
    refused = command("move", "orders", "--to", TWO, "--", "-1")
    assert (refused.exit_code, len(asked)) == (Exit.USAGE, 2)


def test_a_move_that_is_not_finished_in_time_goes_on(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [replace(ORDERS, homes=f"{ONE}>2@{TWO} {TWO} {ONE}")]

    async def move(*_: Any, **__: Any) -> dict[int, str]:
        return {}

    monkeypatch.setattr(partitions, "topology", topology)
    monkeypatch.setattr(partitions, "move", move)
    done = command("move", "orders", "0", "--to", TWO, "--within-s", "0")
    assert (done.exit_code, done.stdout) == (Exit.PARTLY, "")
    assert done.stderr == (
        f"partition 0: moves from {ONE}, which takes its publishes, and it goes on\n"
    )


@pytest.mark.parametrize(("homes", "told"), [(f"{ONE} {TWO} {ONE}", "spread evenly"), (ONE, "")])
def test_spreading_moves_only_what_is_not_even(
    homes: str, told: str, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Any] = []

    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [replace(ORDERS, homes=homes if " " in homes else " ".join([homes] * 3))]

    async def moving(_settings: BusConfig, _topic: str, wanted: Any, *_: Any) -> int:
        moved.append(dict(wanted))
        return 0

    monkeypatch.setattr(partitions, "topology", topology)
    monkeypatch.setattr(partitions, "_moved", moving)
    done = command("spread", "orders", "--yes")
    assert done.exit_code == Exit.DONE
    assert told in done.stdout
    assert moved == ([] if told else [{2: TWO}])


@pytest.mark.parametrize(
    ("home", "told"),
    [(ONE, "is on the list"), ("mb9:5672", "no partition of orders is at home"), ("[", "--home")],
)
def test_only_a_home_that_is_off_the_list_is_abandoned(
    home: str, told: str, command: Callable[..., Result]
) -> None:
    done = command("abandon", "orders", "--home", home, "--yes")
    assert done.exit_code != Exit.DONE
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("why", ["", "its next home prepares"])
def test_what_an_abandoned_home_held_is_told_as_lost(
    why: str, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [replace(ORDERS, homes=f"mb9:5672 {TWO} {ONE}")]

    async def abandon(*_: Any, **__: Any) -> dict[int, str]:
        return {0: why}

    monkeypatch.setattr(partitions, "topology", topology)
    monkeypatch.setattr(partitions, "abandon", abandon)
    done = command("abandon", "orders", "--home", "mb9", "--within-s", "0", "--yes")
    assert done.exit_code == (Exit.PARTLY if why else Exit.DONE)
    lost = "1 partition of orders: what nobody consumed on mb9:5672 is lost\n"
    assert (done.stdout, why in done.stderr) == ("" if why else lost, True)


async def test_a_lost_home_is_abandoned_by_the_first_agent_which_is_asked_until_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Mapping[int, str] | Exception] = [
        {0: "its next home prepares"},
        LinkLost(ONE, "connection refused"),
        {0: ""},
    ]

    async def abandon(_bus: BusConfig, first: ListedBroker, *_: Any, **__: Any) -> Any:
        assert first.broker.name == ONE
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(partitions, "abandon", abandon)
    token, backwards = Secret("t"), BrokerList(listed=LISTED.listed[::-1])
    assert await partitions._abandoned(BUS, backwards, "orders", TWO, 60, token) == {0: ""}
    answers[:] = [{0: "its next home prepares"}]
    assert any((await partitions._abandoned(BUS, LISTED, "orders", TWO, 0, token)).values())
    answers[:] = [LinkLost(ONE, "connection refused")]
    with pytest.raises(LinkLost):
        await partitions._abandoned(BUS, LISTED, "orders", TWO, 0, token)
