"""Promise: the guide for migrating moves a live application to the bus and back, and loses nothing.

Each test is one way of docs/guides/migrating.md, or of from-beetle.md. An application publishes numbers all
the time, first as before, then through the bus, then as before again, and nothing stops it. Whatever was
published is handled by the old consumers or by the new ones; what is handled twice is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.clients.native import join
from clients.conform.proxies import Proxy
from messagebus import App, BusConfig, Dedup, Delivery, Message, Publisher
from messagebus.tools.forward import HANDED_OUT_MAX
from ops.local.cluster import LocalCluster
from tests.support.applications import (
    Application,
    Handle,
    OfBeetle,
    OfCelery,
    OfKombu,
    OfPika,
    is_empty,
)
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually
from tests.support.sites import catches

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 120.0
EACH_S = 0.01
SOME = 50


class Handled:
    """Numbers that each side has handled, as often as it has."""

    def __init__(self) -> None:
        self.old, self.new = Counter[int](), Counter[int]()

    def wait_for(self, side: Counter[int]) -> None:
        """Wait until a side has handled SOME more."""
        wanted = side.total() + SOME
        eventually(lambda: side.total() >= wanted, within_s=WITHIN_S, what=f"{wanted} are handled")

    def both(self) -> Counter[int]:
        return self.old + self.new

    def wait_until_all(self, sent: int) -> None:
        """Wait until all that had been published by now are handled."""
        wanted = set(range(sent))
        eventually(lambda: self.both().keys() >= wanted, within_s=WITHIN_S, what="none is lost")


class Publishing(threading.Thread):
    """Publisher of one number after the other, until the end. publish: may be changed at any time."""

    def __init__(self, publish: Handle) -> None:
        super().__init__(daemon=True)
        self.publish, self.sent, self.fault = publish, 0, ""
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.wait(EACH_S):
            try:
                self.publish(self.sent)
            except Exception as fault:
                self.fault = repr(fault)
                raise
            self.sent += 1

    def __enter__(self) -> Publishing:
        self.start()
        return self

    def __exit__(self, *_fault: object) -> None:
        self.end()

    def end(self) -> None:
        """Publish no more."""
        self._ends.set()
        self.join(WITHIN_S)

    def to(self, publish: Handle) -> None:
        """Publish this way from now on; return when the last one of the other way has ended."""
        self.publish = publish
        after = self.sent + 1
        eventually(lambda: self.sent > after or self.fault, within_s=WITHIN_S, what="it goes on")


class Move:
    """The steps of the guide on the bus."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.bus, self._env = BusConfig.from_env(cluster.client_env()), cluster.client_env()
        self._folder = folder

    def messagebus(self, *words: str) -> str:
        """Run the command, and return what it prints."""
        done = subprocess.run(
            self._argv(words), cwd=ROOT, env=self._full, capture_output=True, text=True
        )
        assert done.returncode in (0, 7), done.stderr
        return done.stdout

    @contextmanager
    def moving(self, *words: str, other: BusConfig) -> Iterator[None]:
        """Run `migrate pull` or `migrate push` meanwhile. It must end well."""
        file = self._folder / f"{uuid.uuid4()}.toml"
        file.write_text(
            f'[bus]\nbroker = "{other.broker}"\nvhost = "{other.vhost}"\nuser = "{other.user}"\n'
            f'password = "{other.password.reveal()}"\n'
        )
        file.chmod(0o600)
        option = "--from-bus" if words[0] == "pull" else "--to-bus"
        argv = self._argv(("migrate", *words, option, str(file)))
        with subprocess.Popen(
            argv, cwd=ROOT, env=self._full, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield
                eventually(lambda: catches(process.pid, signal.SIGTERM), within_s=WITHIN_S)
                process.terminate()
                _, told = process.communicate()
            finally:
                process.kill()
        assert process.returncode == 0, told
        assert "parked 0" in told

    def _argv(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "messagebus", *words]

    @property
    def _full(self) -> dict[str, str]:
        return {**os.environ, **self._env}


@contextmanager
def working(app: App) -> Iterator[None]:
    """Run an app's handlers meanwhile."""
    started, ends = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        async with app:
            started.set()
            await ends.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        eventually(lambda: started.is_set() or not thread.is_alive(), within_s=WITHIN_S)
        yield
    finally:
        loops[0].call_soon_threadsafe(ends.set)
        thread.join()


def there_and_back(
    move: Move,
    old: Application,
    app: App,
    pulled: str,
    own: str,
    handled: Handled,
    faults: Sequence[Callable[[], object]] = (),
) -> int:
    """Move an application to the bus and back, by the guide; return how many were handled again.

    pulled: the topic or queue to pull to. own: the subscription or queue of messages of the new publishers.
    faults: one on the way there, one on the way back.
    """
    destination, _, subscription = own.partition("/")
    with ExitStack() as stack:
        stack.callback(old.close)
        publisher = stack.enter_context(Publisher(move.bus))
        numbers = stack.enter_context(Publishing(old.publish))

        before = stack.enter_context(_held(old.consuming(_to(handled.old))))
        handled.wait_for(handled.old)
        # There.
        new = stack.enter_context(_held(working(app)))
        with ExitStack() as pulls:
            for bus, queue in old.queues:
                pulls.enter_context(move.moving("pull", queue, pulled, other=bus))
            handled.wait_for(handled.new)
            for fault in faults[:1]:
                fault()
            before.close()
            handled.wait_for(handled.new)
            numbers.to(lambda number: _send(publisher, destination, old.message(number)))
            handled.wait_until_all(numbers.sent)
            for bus, queue in old.queues:
                eventually(lambda: is_empty(bus, queue), within_s=WITHIN_S)  # noqa: B023
        handled.wait_for(handled.new)
        # And back.
        after = stack.enter_context(_held(old.consuming(_to(handled.old))))
        words = ("-s", subscription) if subscription else ()
        with move.moving("push", destination, old.back, *words, other=old.queues[0][0]):
            new.close()
            for fault in faults[1:]:
                fault()
            handled.wait_for(handled.old)
            numbers.to(old.publish)
            handled.wait_until_all(numbers.sent)
        handled.wait_for(handled.old)
        numbers.end()
        handled.wait_until_all(numbers.sent)
        after.close()
    assert not numbers.fault
    doubles = handled.both().total() - numbers.sent
    print(
        f"{numbers.sent} messages, 0 lost, {doubles} doubles; the old consumers handled "
        f"{handled.old.total()}, the new ones {handled.new.total()}"
    )
    return doubles


def _held(context: AbstractContextManager[object]) -> ExitStack:
    """Enter a context that may be left before its time."""
    stack = ExitStack()
    stack.enter_context(context)
    return stack


def _to(counter: Counter[int]) -> Handle:
    def handle(number: int) -> None:
        counter[number] += 1

    return handle


def _send(publisher: Publisher, destination: str, message: Message) -> None:
    publisher.send_safe(destination, message, timeout_s=WITHIN_S)


def billing(topic: str, handled: Handled) -> App:
    """The application after the move."""
    app = App()

    @app.subscriber(topic, subscription="billing")
    def bill(order: dict[str, int]) -> None:
        handled.new[order["number"]] += 1

    return app


@pytest.fixture
def move(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Move:
    for name, value in cluster.client_env().items():
        monkeypatch.setenv(name, value)
    return Move(cluster, tmp_path)


@contextmanager
def legacy(cluster: LocalCluster, name: str, vhost: str) -> Iterator[BusConfig]:
    """Give a virtual host of a broker that nobody else uses: another RabbitMQ, by its contents."""
    with cluster.management(name) as management:
        management.put(f"/api/vhosts/{vhost}").raise_for_status()
        rights = dict.fromkeys(("configure", "write", "read"), ".*")
        management.put(f"/api/permissions/{vhost}/admin", json=rights).raise_for_status()
        try:
            yield BusConfig(
                broker=cluster.node(name).broker,
                vhost=vhost,
                user="admin",
                password=cluster.admin_password,
            )
        finally:
            management.delete(f"/api/vhosts/{vhost}").raise_for_status()


@pytest.mark.guarantee("migrated-there-and-back")
def test_an_application_of_one_rabbitmq_moves_there_and_back(
    cluster: LocalCluster, move: Move, topic: str, tmp_path: Path
) -> None:
    handled = Handled()
    with legacy(cluster, "mb2", f"old-{topic}") as old:
        application = OfPika(old)
        with cluster.management("mb2") as management:
            export = management.get(f"/api/definitions/{old.vhost}").raise_for_status().text
        (tmp_path / "definitions.json").write_text(export)
        plan = move.messagebus("migrate", "plan", str(tmp_path / "definitions.json"))
        command = plan.splitlines()[-1].replace("orders", topic)
        assert command == f"messagebus declare {topic} {topic}/billing", plan
        move.messagebus(*command.split()[1:])
        source = f"{topic}/billing"
        doubles = there_and_back(move, application, billing(topic, handled), topic, source, handled)
    assert doubles == 0, "nothing was killed"


@pytest.mark.guarantee("migrated-there-and-back")
def test_an_application_of_a_rabbitmq_cluster_moves_there_and_back_while_a_node_is_killed(
    cluster: LocalCluster, move: Move, topic: str, make_cluster: MakeCluster
) -> None:
    """It is reached by one address, as through its balancer. On the way back all its connections are cut."""
    handled = Handled()
    joined = make_cluster(3)
    join(joined)
    with contextlib.closing(Proxy(joined.node("mb1").broker)) as balancer:
        application = OfPika(
            BusConfig(broker=balancer.address, user="admin", password=joined.admin_password)
        )

        living = {joined.node(name).node_name for name in ("mb2", "mb3")}

        def leader() -> object:
            """Or None: a channel that was opened then is refused everything, for ever (RabbitMQ 3.10.8)."""
            with joined.management("mb2") as management:
                return management.get("/api/queues/%2F/billing").raise_for_status().json()["leader"]

        def kill_the_node() -> None:
            balancer.target = joined.node("mb2").broker
            joined.kill("mb1")
            eventually(lambda: leader() in living, within_s=WITHIN_S, what="a new leader")
            # A confirm that was on its way meanwhile may never come, and pika waits for it without end.
            balancer.cut()

        move.messagebus("declare", source := f"{topic}/billing")
        app, faults = billing(topic, handled), (kill_the_node, balancer.cut)
        doubles = there_and_back(move, application, app, topic, source, handled, faults)
    # Of what was under way when a line ended, on the side that gave it and on the side that took it.
    assert doubles <= 2 * HANDED_OUT_MAX


@pytest.mark.guarantee("migrated-there-and-back")
def test_tasks_of_celery_move_there_and_back(
    cluster: LocalCluster, move: Move, topic: str, tmp_path: Path
) -> None:
    handled, app = Handled(), App()

    @app.subscriber(f"queue:{topic}")
    def run(body: list[Any], delivery: Delivery) -> None:
        assert delivery.headers["task"] == "shop.bill"
        args, kwargs, _ = body
        bill(*args, **kwargs)

    def bill(order: dict[str, int]) -> None:
        handled.new[order["number"]] += 1

    with legacy(cluster, "mb2", f"old-{topic}") as old:
        move.messagebus("declare", queue := f"queue:{topic}")
        doubles = there_and_back(move, OfCelery(old, tmp_path), app, queue, queue, handled)
    assert doubles == 0, "nothing was killed"


@pytest.mark.guarantee("migrated-there-and-back")
def test_an_application_of_kombu_moves_there_and_back(
    cluster: LocalCluster, move: Move, topic: str
) -> None:
    handled = Handled()
    with legacy(cluster, "mb3", f"old-{topic}") as old:
        move.messagebus("declare", source := f"{topic}/billing")
        application, app = OfKombu(old), billing(topic, handled)
        doubles = there_and_back(move, application, app, topic, source, handled)
    assert doubles == 0, "nothing was killed"


@pytest.mark.guarantee("migrated-there-and-back")
def test_redundant_messages_of_beetle_move_there_and_back(
    cluster: LocalCluster, move: Move, topic: str
) -> None:
    handled, app = Handled(), App(dedup=Dedup("memory:"))
    queue, source = f"queue:{topic}-from-beetle", f"{topic}/billing"

    @app.subscriber(queue)
    @app.subscriber(topic, subscription="billing")
    def bill(order: dict[str, int]) -> None:
        handled.new[order["number"]] += 1

    with ExitStack() as servers:
        buses = [
            servers.enter_context(legacy(cluster, name, f"old-{topic}")) for name in ("mb2", "mb3")
        ]
        move.messagebus("declare", queue, source)
        there_and_back(move, OfBeetle(buses), app, queue, source, handled)
    # A copy may be handled by either side while the other one is handled by the other side.
    for side in (handled.old, handled.new):
        assert max(side.values()) == 1, "each side drops its own doubles"
