"""Links, and control channels on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from messagebus._io.amqp import control as module
from messagebus._io.amqp import link as link_module
from messagebus._io.amqp.control import (
    Control,
    Right,
    mismatch_text,
    node_is_gone,
    rights_of,
)
from messagebus._io.amqp.link import Credentials
from messagebus.broker import Broker
from messagebus.destination import Subscription, Topic
from messagebus.errors import ChannelRefused, LinkLost, LoginRefused
from messagebus.secret import Secret
from messagebus.topology import Declarations, QueueSpec, declarations
from tests.support.fake_amqp import fake_rabbit

WANTED = declarations(Subscription(Topic("orders"), "a"), born=3)
WHO = Credentials(user="admin", password=Secret("pw"))
# To the topic; to what is due for the topic, and for it alone.
BOUND = [("queue_bind", "mb.sub/orders/a")] * 3
NAMES = ("queue", "exchange", "destination")


class FakeLink:
    """Link that remembers calls; it refuses those in `refused`, by method and name, with a code."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.refused: dict[tuple[str, str], int] = {}
        self.aside: list[bool] = []
        self.text = "refused"
        self.hangs = False
        self.aborted = False
        self.address = Broker("a")
        self.is_open = True
        self.consumed: list[Any] = []
        self.channel = SimpleNamespace(basic_consume=self._consume, basic_publish=self._publish)
        self.transport = SimpleNamespace(on_confirm=None)
        self.confirms = True
        self.messages = 3
        self.published: list[tuple[str, str, bytes]] = []
        self.dialled: list[FakeLink] = []
        self.closed = False
        self.connection = SimpleNamespace(params=SimpleNamespace(channel_max=100))
        self.lanes: list[FakeLink] = []
        self.sent: list[int] = []

    async def call(self, method: str, **arguments: Any) -> Any:
        self.aside.append(False)
        return await self._call(method, arguments)

    async def call_all(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.sent.append(len(calls))
        for method, arguments in calls:
            await self.call(method, **arguments)

    async def try_call(self, method: str, **arguments: Any) -> Any:
        self.aside.append(True)
        return await self._call(method, arguments)

    async def _call(self, method: str, arguments: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        name = str(next((arguments[k] for k in NAMES if arguments.get(k)), ""))
        passive = "?" if arguments.get("passive") else ""
        self.calls.append((method + passive, name))
        code = self.refused.get((method + passive, name)) or self.refused.get((method, name))
        if code:
            self.is_open = False
            raise ChannelRefused("a:5672", code, self.text)
        return SimpleNamespace(
            queue=name or "amq.gen-1", message_count=self.messages, consumer_count=1
        )

    def _consume(self, queue: str, **arguments: Any) -> None:
        self.consumed.append((queue, arguments["on_message_callback"]))

    def _publish(self, exchange: str, routing_key: str, body: bytes) -> None:
        self.published.append((exchange, routing_key, body))
        if self.confirms:
            self.transport.on_confirm(1, False, True)

    async def confirm_select(self) -> None:
        self.calls.append(("confirm_select", ""))

    async def dial_again(self) -> FakeLink:
        self.dialled.append(other := FakeLink())
        other.confirms = self.confirms
        return other

    async def open_channel(self) -> FakeLink:
        self.lanes.append(lane := FakeLink())
        lane.calls, lane.refused, lane.hangs = self.calls, self.refused, self.hangs
        lane.sent = self.sent
        return lane

    async def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def control(link: FakeLink) -> Control:
    return Control(link, link.dial_again)  # type: ignore[arg-type]


async def test_declaring_binds_nothing_yet(control: Control, link: FakeLink) -> None:
    await control.declare(WANTED)
    assert link.calls == [
        ("exchange_declare", "mb.topic/orders"),
        ("queue_declare", "mb.park/orders/a"),
        ("queue_declare", "mb.sub/orders/a"),
    ]
    link.calls.clear()
    await control.bind(WANTED)
    assert link.calls == BOUND


async def test_declarations_wait_for_no_answer_of_another_one_but_few_are_under_way(
    control: Control, link: FakeLink
) -> None:
    many = Declarations(queues=WANTED.queues * 50, bindings=WANTED.bindings * 50)
    await control.declare(many)
    await control.bind(many)
    assert link.sent == [64, 36, 64, 64, 22]
    assert len(link.calls) == 250


async def test_many_declarations_share_one_channel_of_their_own(
    control: Control, link: FakeLink
) -> None:
    await asyncio.gather(*(control.declare(WANTED) for _ in range(20)))
    assert len(link.lanes) == 1
    assert len(link.calls) == 20 * 3
    assert not link.aside, "the link's own channel is free for all else"


async def test_a_refused_declaration_leaves_the_link_and_costs_its_channel(
    control: Control, link: FakeLink
) -> None:
    link.refused = {("queue_declare", "mb.park/orders/a"): 406}
    with pytest.raises(ChannelRefused):
        await control.declare(WANTED)
    assert link.is_open
    link.refused.clear()
    await control.declare(WANTED)
    assert len(link.lanes) == 2


async def test_answers_to_cancelled_declarations_do_not_count_for_the_next_ones() -> None:
    def queue(name: str, **more: int) -> QueueSpec:
        return QueueSpec(name=name, arguments={"x-queue-type": "quorum", **more})

    with fake_rabbit() as rabbit:
        control = await Control.dial(Broker.parse(rabbit.name), WHO, timeout_ms=60_000)
        await control.declare(Declarations(queues=(queue("there"),)))
        many = Declarations(queues=tuple(queue(f"a{number}") for number in range(60)))
        cancelled = asyncio.create_task(control.declare(many))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        others = (*(queue(f"b{number}") for number in range(30)), queue("there", **{"x-limit": 7}))
        with pytest.raises(ChannelRefused, match="PRECONDITION_FAILED"):
            await control.declare(Declarations(queues=others))
        await control.close()


async def test_where_a_broker_allows_one_channel_everything_is_on_it(
    control: Control, link: FakeLink
) -> None:
    link.connection.params.channel_max = 1
    await control.declare(WANTED)
    await control.bind(WANTED)
    assert not link.lanes
    assert set(link.aside) == {False}


async def test_looking_for_a_mismatch_makes_nothing(control: Control, link: FakeLink) -> None:
    link.refused = {
        ("exchange_declare?", "mb.topic/orders"): 404,
        ("queue_declare?", "mb.park/orders/a"): 404,
    }
    assert await control.mismatch(WANTED) == ""
    assert link.calls == [
        ("exchange_declare?", "mb.topic/orders"),
        ("queue_declare?", "mb.park/orders/a"),
        ("queue_declare?", "mb.sub/orders/a"),
        ("queue_declare", "mb.sub/orders/a"),
    ]
    assert set(link.aside) == {True}


async def test_a_mismatch_is_told_in_words(control: Control, link: FakeLink) -> None:
    link.text = (
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'mb.sub/orders/a' in"
        " vhost '/': received 'quorum' but current is 'classic'"
    )
    link.refused = {("queue_declare", "mb.sub/orders/a"): 406}
    told = await control.mismatch(WANTED)
    assert told == "queue 'mb.sub/orders/a': x-queue-type is wanted 'quorum' and exists 'classic'"
    link.refused = {("exchange_declare", "mb.topic/orders"): 406}
    assert await control.mismatch(WANTED) == told
    link.refused = {("queue_declare?", "mb.sub/orders/a"): 405}
    assert "405" in await control.mismatch(WANTED)
    link.refused = {("queue_declare?", "mb.sub/orders/a"): 403}
    with pytest.raises(ChannelRefused):
        await control.mismatch(WANTED)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            "406 PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost '/':"
            " received the value '3000' of type 'signedint' but current is none",
            "queue 'q': x-expires is wanted '3000' and exists none",
        ),
        (
            "406 PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/':"
            " received 'fanout' but current is 'direct'",
            "exchange 'e': type is wanted 'fanout' and exists 'direct'",
        ),
        ("406 something else", "406 something else"),
    ],
)
def test_a_refusal_in_fewer_words(reason: str, text: str) -> None:
    assert mismatch_text(reason) == text


async def test_counting_and_purging_leave_the_link_alone(control: Control, link: FakeLink) -> None:
    assert await control.counts("q") == (3, 1)
    assert await control.purge("q") == 3
    link.refused = {("queue_declare", "q"): 404, ("queue_purge", "q"): 404}
    assert await control.counts("q") is None
    assert await control.purge("q") is None
    link.refused = {("queue_declare", "q"): 403, ("queue_purge", "q"): 403}
    with pytest.raises(ChannelRefused):
        await control.counts("q")
    with pytest.raises(ChannelRefused):
        await control.purge("q")
    assert set(link.aside) == {True}


async def test_the_audit_only_looks_and_binds(control: Control, link: FakeLink) -> None:
    assert await control.audit(WANTED) == ""
    assert link.calls == [
        ("queue_declare?", "mb.park/orders/a"),
        ("queue_declare?", "mb.sub/orders/a"),
        *BOUND,
    ]


async def test_the_audit_names_what_is_missing(control: Control, link: FakeLink) -> None:
    link.refused = {("queue_declare", "mb.sub/orders/a"): 404}
    assert await control.audit(WANTED) == "mb.sub/orders/a"
    link.refused = {("queue_declare", "mb.sub/orders/a"): 405}
    with pytest.raises(ChannelRefused):
        await control.audit(WANTED)


async def test_the_gate_is_open_when_there_is_a_message_in_its_queue(
    control: Control, link: FakeLink
) -> None:
    assert await control.gate_is_open()
    link.messages = 0
    assert not await control.gate_is_open()
    link.refused = {("queue_declare", "mb.ready"): 404}
    assert not await control.gate_is_open()
    link.refused = {("queue_declare", "mb.ready"): 403}
    with pytest.raises(ChannelRefused):
        await control.gate_is_open()


async def test_the_gate_is_opened_over_a_link_of_its_own_which_an_alarm_may_block(
    control: Control, link: FakeLink
) -> None:
    await control.open_gate()
    assert link.calls == [("queue_declare", "mb.ready")]
    (other,) = link.dialled
    assert other.calls == [("confirm_select", "")]
    assert (other.published, link.published) == ([("", "mb.ready", b"")], [])
    assert other.closed


async def test_a_gate_whose_message_is_not_confirmed_costs_the_link(
    control: Control, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_TIMEOUT_S", 0.02)
    link.confirms = False
    with pytest.raises(LinkLost, match="opens the gate"):
        await control.open_gate()
    assert link.dialled[0].closed


async def test_events_are_followed_if_there_are_any(control: Control, link: FakeLink) -> None:
    told: list[tuple[str, Any]] = []

    def on_event(key: str, headers: Any) -> None:
        told.append((key, headers))

    link.refused = {("exchange_declare", "amq.rabbitmq.event"): 404}
    assert not await control.follow_events(on_event)
    link.refused = {}
    assert await control.follow_events(on_event)
    ((queue, arrived),) = link.consumed
    assert queue == "amq.gen-1"
    arrived(None, SimpleNamespace(routing_key="queue.deleted"), SimpleNamespace(headers=None), b"")
    assert told == [("queue.deleted", {})]


async def test_a_broker_that_does_not_answer_is_given_up(
    control: Control, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_TIMEOUT_S", 0.01)
    link.hangs = True
    with pytest.raises(LinkLost, match="no answer"):
        await control.delete_queue("q")
    assert link.aborted


async def test_the_settle_queue_is_always_a_new_one(control: Control, link: FakeLink) -> None:
    await control.declare_settle_queue()
    assert link.calls == [("queue_delete", "mb.settle"), ("queue_declare", "mb.settle")]


class Rightless:
    """Link on which this is refused for want of rights, everything else for another reason."""

    def __init__(self, *names: str) -> None:
        self.names, self.closed = names, False

    async def try_call(self, method: str, **arguments: Any) -> Any:
        asked = [arguments.get(key) for key in ("destination", "queue", "source")]
        for name in asked:
            if name in self.names:
                raise ChannelRefused("a:5672", 403, f"access to '{name}' in vhost '/' refused")
        code = 404 if method == "exchange_bind" else 406
        raise ChannelRefused("a:5672", code, f"no exchange '{arguments.get('source')}'")

    def abort(self) -> None:
        self.closed = True


async def test_a_login_is_bad_unknown_or_has_the_rights_that_the_broker_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome: list[Any] = [Rightless("mb.topic/b", "mb.sub/b", "mb.nowhere")]

    async def dial(*_: Any, **__: Any) -> Any:
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    async def found(*rights: Right) -> set[Right] | None:
        return await rights_of(Broker("a"), WHO, rights, timeout_ms=1_000)

    monkeypatch.setattr(module, "dial", dial)
    a = {Right("write", "mb.topic/a"), Right("read", "mb.sub/a")}
    assert await found(*a, Right("write", "mb.topic/b"), Right("read", "mb.sub/b")) == a
    assert outcome[0].closed
    outcome[0] = LoginRefused("a:5672", "403")
    assert await found() is None
    outcome[0] = LinkLost("a:5672", "refused")
    with pytest.raises(LinkLost):
        await found()


@pytest.mark.guarantee("complete-means-everywhere")
@pytest.mark.parametrize(
    ("answer", "is_gone"),
    [(b"w\x01", True), (b"w\x00\x0b\xd4", False), (b"w", False), (b"", False), (b"x\x01", False)],
)
async def test_a_node_is_gone_only_by_the_word_of_its_port_mapper(
    answer: bytes, is_gone: bool
) -> None:
    asked: list[bytes] = []

    async def epmd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readexactly(9))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(epmd, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await node_is_gone("127.0.0.1", "rabbit@h", port, timeout_s=5) == is_gone
    assert asked == [b"\x00\x07zrabbit"]
    server.close()
    await server.wait_closed()
    assert not await node_is_gone("127.0.0.1", "rabbit@h", port, timeout_s=5)


async def test_whoever_is_cancelled_while_a_socket_is_closed_waits_all_the_same() -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(link_module._until(ended))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    ended.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_wait_for_a_socket_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "ABORT_TIMEOUT_MS", 1)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await link_module._until(ended)
    assert not ended.done()
