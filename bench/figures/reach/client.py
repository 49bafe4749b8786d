"""The CPU time of a client per message: with more brokers to read from, and with more topics to publish to.

The brokers are no RabbitMQ but speak AMQP, all in one process of their own: the figures are of the client. A
ratio is taken within a repetition, between turns in fresh processes.

``python -m bench.figures.reach.client serve BROKERS TOPICS MESSAGES`` is the process of the brokers;
``consume BROKERS MESSAGES`` and ``publish TOPICS MESSAGES`` are a turn of a client.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack

from bench.errors import BenchError
from bench.figures.client.mesh import DIAL
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import Group, Setup, repeat_command
from bench.harness.loop import best_loop, event_loop
from bench.harness.timed_turn import Task, Turn, body, slices, timed, to_json
from bench.processes import Answering
from messagebus import AsyncConsumer, AsyncPublisher, BusConfig, ConsumerConfig, PublisherConfig

NAME = "reach.client"
TOPIC, SUBSCRIPTION = "reach", "sink"
BROKERS, TOPICS = (1, 4, 16, 64), (1, 50, 500)
MESSAGES, WARM_UP, WINDOW, SLICE, BODY_BYTES = 40_000, 4_000, 1_000, 10_000, 1_024
ANSWER_WITHIN_S, START_S, RECEIVE_S = 240.0, 120.0, 60.0
# A read of a socket, and a write of acks, bring fewer messages from each of many brokers.
GOALS = {"consume": 2.0, "publish": 1.5}


def client_figures(setup: Setup) -> Iterator[Figure]:
    make, count = Maker(NAME, repeat_command(NAME, setup.repeat)), setup.part(MESSAGES, 2_000)
    turns = [("consume", size) for size in BROKERS] + [("publish", size) for size in TOPICS]
    costs: dict[tuple[str, int], list[float]] = {each: [] for each in turns}
    for number in range(setup.repeat):
        start = number % len(turns)
        for verb, size in [*turns[start:], *turns[:start]]:
            costs[verb, size].append(_turn(verb, size, count))
            setup.say(f"{verb}, {size}: {costs[verb, size][-1]:.2f} us of CPU a message")
    for verb, sizes, what in (
        ("consume", BROKERS, "Received and acked, 1 KB, from {} broker{}"),
        ("publish", TOPICS, "Safe publishes of 1 KB to {} topic{} in turn, AsyncPublisher.submit"),
    ):
        for size in sizes:
            said, of_one = what.format(size, "s" * (size > 1)), costs[verb, 1]
            id = f"{verb}.{size}."
            yield make(f"{id}cpu_us", f"{said}: CPU time of the client", costs[verb, size], "us")
            if size > 1:
                ratios = [many / one for many, one in zip(costs[verb, size], of_one, strict=True)]
                told = f"{said}: CPU time of the client, against one"
                yield make(f"{id}ratio", told, ratios, "times", (at_most, GOALS[verb]))


def _turn(verb: str, size: int, messages: int) -> float:
    """Return the CPU time per message, in us, of one client in a process of its own."""
    brokers, topics = (size, 1) if verb == "consume" else (1, size)
    held = messages + WARM_UP if verb == "consume" else 0
    with ExitStack() as stack:
        server = child(stack, "client", "serve", brokers, topics, held)
        list_url, broker = server.answer()
        env = {"MESSAGEBUS_LIST_URL": list_url, "MESSAGEBUS_BROKER": broker, **DIAL}
        found = child(stack, "client", verb, size, messages, **env).answer()
    return Turn(**found).cpu_us


def child(stack: ExitStack, module: str, *arguments: object, **settings: str) -> Answering:
    """Start a module of this package with its arguments and settings."""
    plain = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    argv = [sys.executable, "-m", f"bench.figures.reach.{module}", *map(str, arguments)]
    return stack.enter_context(Answering(argv, plain | settings, ANSWER_WITHIN_S))


GROUP = Group(NAME, 0, "brokers that speak AMQP and are not RabbitMQ; no HAProxy", client_figures)


# The processes.


def names(topics: int) -> list[str]:
    return [f"{TOPIC}{number}" for number in range(topics)]


async def serve_brokers(brokers: int, topics: int, messages: int) -> None:
    """Serve until the standard input ends. messages: in the first topic's queue, evenly over all brokers."""
    from tests.support.fake_amqp import FakeRabbit, Stored, serve
    from tests.support.fake_list import FakeList, serve_list

    rabbits = [FakeRabbit() for _ in range(brokers)]
    async with serve(*rabbits):
        content = body(BODY_BYTES)
        for number, rabbit in enumerate(rabbits):
            for topic in names(topics):
                rabbit.hold(f"{topic}/{SUBSCRIPTION}")
            queue = f"mb.sub/{TOPIC}0/{SUBSCRIPTION}"
            for _message in range(number, messages, brokers):
                rabbit.queues[queue].messages.append(Stored(body=content, routing_key=queue))
        async with serve_list(FakeList(rabbit.name for rabbit in rabbits)) as listing:
            print(json.dumps([listing.url, rabbits[0].name]), flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def consume(brokers: int, messages: int) -> Turn:
    # As many deliveries are under way from all brokers together as from one.
    config = ConsumerConfig(prefetch=WINDOW // brokers, handed_out_max=WINDOW)
    bus = BusConfig.from_env(os.environ)
    consumer = AsyncConsumer(bus, f"{TOPIC}0", subscription=SUBSCRIPTION, config=config)
    await consumer.start(require="all", timeout_s=START_S)

    async def take(count: int) -> None:
        for _ in range(count):
            delivery = await consumer.receive(RECEIVE_S)
            if delivery is None:
                raise BenchError(f"no message within {RECEIVE_S:.0f} s")
            consumer.ack(delivery)

    found = await timed(_task("consume", messages), take)
    await consumer.stop()
    return found


async def publish(topics: int, messages: int) -> Turn:
    bus, content, to = BusConfig.from_env(os.environ), body(BODY_BYTES), names(topics)
    async with AsyncPublisher(bus, PublisherConfig(window=WINDOW)) as publisher:

        async def send(count: int) -> None:
            for size in slices(count, SLICE):
                sent = [await publisher.submit(to[n % topics], content) for n in range(size)]
                for each in sent:
                    await each

        return await timed(_task("publish", messages), send)


def _task(verb: str, messages: int) -> Task:
    return Task(
        verb=verb,
        env={},
        topic=TOPIC,
        subscription=SUBSCRIPTION,
        messages=messages,
        warm_up=WARM_UP,
    )


CLIENTS: dict[str, Callable[..., Awaitable[Turn]]] = {"consume": consume, "publish": publish}


def main(verb: str, *numbers: int) -> None:
    if verb == "serve":
        _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
        asyncio.run(serve_brokers(*numbers))
        return
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:

        async def turn() -> Turn:
            return await CLIENTS[verb](*numbers)

        print(to_json(runner.run(turn())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
