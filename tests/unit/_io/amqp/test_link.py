"""_io.amqp.link: where a dial goes, and what its end means."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pika.exceptions
import pytest
import uvloop

from messagebus import Secret
from messagebus._io.amqp.link import Call, Credentials, Link, _translate, dial
from messagebus.broker import Broker
from messagebus.errors import ChannelRefused, LinkError, LinkLost, LoginRefused
from tests.support.eventually import eventually_async
from tests.support.fake_amqp import FakeRabbit, Manners, fake_rabbit, fake_rabbits
from tests.support.resolver import resolve

MB1 = Broker.parse("mb1:5672")
OF_VHOST = "NOT_ALLOWED - access to vhost '/' refused for user 'bus': "
FOR_NOW = [
    f"{OF_VHOST}connection limit (1) is reached",
    "NOT_ALLOWED - connection refused for user 'bus': user connection limit (0) is reached",
    "NOT_ALLOWED - connection refused: node connection limit (10000) is reached",
    f"{OF_VHOST}vhost '/' is down",
]


def ended(code: int, text: str, *, in_handshake: bool) -> Exception:
    why: Exception = pika.exceptions.ConnectionClosedByBroker(code, text)
    return pika.exceptions.ProbableAccessDeniedError(repr(why)) if in_handshake else why


@pytest.mark.parametrize("in_handshake", [False, True])
@pytest.mark.parametrize("text", FOR_NOW)
def test_a_limit_or_a_virtual_host_that_is_down_is_no_wrong_password(
    text: str, in_handshake: bool
) -> None:
    fault = _translate(MB1, ended(530, text, in_handshake=in_handshake))
    assert type(fault) is LinkLost
    assert fault.reason == text


@pytest.mark.parametrize("in_handshake", [False, True])
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."),
        (530, "NOT_ALLOWED - vhost 'orders' not found"),
        (530, "NOT_ALLOWED - access to vhost '/' refused for user 'bus'"),
    ],
)
def test_a_login_or_a_right_that_the_broker_does_not_know_is_refused(
    code: int, text: str, in_handshake: bool
) -> None:
    fault = _translate(MB1, ended(code, text, in_handshake=in_handshake))
    assert type(fault) is LoginRefused
    assert fault.reason == text


NAME = "lb.example"
GUEST = Credentials(user="guest", password=Secret("guest"))
DIAL_MS = 60_000


@contextmanager
def behind_one_name(
    monkeypatch: pytest.MonkeyPatch, first: str, *, manners: Manners | None = None
) -> Iterator[tuple[FakeRabbit, FakeRabbit]]:
    """Run two brokers on one port; the name leads to the first one's address first."""
    bad = FakeRabbit(first, manners=manners)
    with fake_rabbits(bad), fake_rabbit("127.0.0.3", bad.port) as good:
        resolve(monkeypatch, {NAME: [bad.host, good.host]})
        yield bad, good


async def dialled(port: int) -> Link:
    return await dial(Broker.parse(f"{NAME}:{port}"), GUEST, timeout_ms=DIAL_MS)


@pytest.mark.guarantee("names-and-slow-lines")
@pytest.mark.parametrize("first", ["127.0.0.2", "::1"])
@pytest.mark.parametrize("step", ["connect", "start", "tune"])
async def test_a_first_address_that_accepts_and_says_nothing_holds_up_no_dial(
    monkeypatch: pytest.MonkeyPatch, first: str, step: str
) -> None:
    silent = Manners(silent_after=step)  # type: ignore[arg-type]
    with behind_one_name(monkeypatch, first, manners=silent) as (bad, good):
        link = await dialled(bad.port)
        assert link.broker == good.name
        assert str(link.address) == f"{NAME}:{bad.port}"
        await link.close()
        assert bad.accepted == 1


@pytest.mark.guarantee("names-and-slow-lines")
async def test_a_first_address_that_drops_connections_holds_up_no_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill = [socket.socket() for _ in range(3)]
    with fake_rabbit("127.0.0.3") as good, socket.socket() as full:
        full.bind(("127.0.0.2", good.port))
        full.listen(0)
        for each in (
            fill
        ):  # its queue is full: the kernel answers no further SYN, as of a host without power
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        resolve(monkeypatch, {NAME: ["127.0.0.2", "127.0.0.3"]})
        link = await dialled(good.port)
        await link.close()
        for each in fill:
            each.close()


async def test_a_refused_login_is_tried_at_no_other_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with behind_one_name(monkeypatch, "127.0.0.2", manners=Manners(passwords={})) as (bad, good):
        with pytest.raises(LoginRefused):
            await dialled(bad.port)
        assert (bad.refused, good.accepted) == (1, 0)


async def test_nobody_listens_only_where_no_address_has_a_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_rabbit("127.0.0.3", manners=Manners(channel_max=1)) as rabbit:
        resolve(monkeypatch, {NAME: ["127.0.0.2", "127.0.0.4"]})
        with pytest.raises(LinkLost) as absent:
            await dialled(rabbit.port)
        rabbit.manners.vhosts = frozenset()
        resolve(monkeypatch, {NAME: ["127.0.0.2", "127.0.0.3"]})
        with pytest.raises(LinkError) as there:
            await dialled(rabbit.port)
    assert getattr(absent.value, "absent", False)
    assert not getattr(there.value, "absent", False)


async def test_a_name_that_nobody_knows_is_a_lost_link(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, {NAME: []})
    with pytest.raises(LinkLost, match="not known"):
        await dialled(5672)


async def test_an_ipv6_address_is_dialled_by_its_number_and_by_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_rabbit("::1", manners=Manners(cluster_name="mb1:5672")) as rabbit:
        resolve(monkeypatch, {NAME: ["127.0.0.2", "::1"]})
        for host in ("[::1]", NAME):
            link = await dial(Broker.parse(f"{host}:{rabbit.port}"), GUEST, timeout_ms=DIAL_MS)
            assert link.broker == "mb1:5672"
            await link.close()


HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
READ_BYTES = 64 * 1024


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("frames", [1, 2 * READ_BYTES // len(HEARTBEAT)])
@pytest.mark.parametrize("own_frames", [True, False])
def test_a_reset_right_behind_data_ends_a_link(
    new_loop: Callable[[], asyncio.AbstractEventLoop], frames: int, own_frames: bool
) -> None:
    """uvloop calls a reader once for a failed socket and then no more, however much it left unread."""

    async def reset(rabbit: FakeRabbit) -> None:
        link = await dial(Broker.parse(rabbit.name), GUEST, timeout_ms=DIAL_MS)
        if own_frames:
            assert link.transport
        rabbit.send_raw(HEARTBEAT * frames)
        rabbit.drop_connections()
        failed = select.poll()
        failed.register(link.connection._transport._sock, 0)
        assert failed.poll(DIAL_MS)  # this thread reads nothing meanwhile
        async with asyncio.timeout(DIAL_MS / 1000):
            await link.ended
        assert not link.is_open

    with fake_rabbit() as rabbit, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(reset(rabbit))


def declaring(names: Iterable[str]) -> list[Call]:
    return [("queue_declare", {"queue": name, "durable": True, "arguments": {}}) for name in names]


async def test_many_requests_are_sent_before_the_first_is_answered() -> None:
    with fake_rabbit() as rabbit:
        link = await dial(Broker.parse(rabbit.name), GUEST, timeout_ms=DIAL_MS)
        channel, names = await link.open_channel(), [f"q{number}" for number in range(50)]
        rabbit.stop_reading()
        before = link.sent_bytes
        asked = asyncio.create_task(channel.call_all(declaring(names)))
        all_bytes = sum(map(len, names))
        await eventually_async(lambda: link.sent_bytes - before > all_bytes, within_s=10)
        assert not asked.done()
        link.abort()
        with pytest.raises(LinkLost):
            await asked


async def test_a_refused_request_ends_its_channel_and_none_behind_it_is_made() -> None:
    with fake_rabbit(manners=Manners(forbidden={"q2"})) as rabbit:
        link = await dial(Broker.parse(rabbit.name), GUEST, timeout_ms=DIAL_MS)
        channel = await link.open_channel()
        with pytest.raises(ChannelRefused, match="403"):
            await channel.call_all(declaring(["q1", "q2", "q3"]))
        assert ([*rabbit.queues], channel.is_open, link.is_open) == (["q1"], False, True)
        again = await link.open_channel()
        await again.call_all([])
        await again.call_all(declaring(["q1", "q3"]))
        await again.call_all(
            [("exchange_declare", {"exchange": "e", "exchange_type": "fanout"})]
            + [("queue_bind", {"queue": each, "exchange": "e"}) for each in ("q1", "q3")]
        )
        assert {"q1", "q3"} == {queue for _, _, queue in rabbit.bindings}
        await link.close()
