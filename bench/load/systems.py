"""The systems that can be measured, and the settings that each supports. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DURABILITIES = ("fsync", "page-cache", "none")
WITHOUT_NONE = ("fsync", "page-cache")
# each: the application answers every delivery by itself. many: one answer for a quarter of the prefetch
# together. none: a delivery counts as answered before it is handled, so a crash loses it.
ACKS = ("each", "many", "none")
# AMQP has 16 bits for it.
PREFETCH_MAX = 65_535
# The upper bound of our client, in AMQP messages: a batch is one.
OUR_PREFETCH_MAX = 2_000
# Of `bench.faults.FAULTS`. A client of one node would not survive a kill or a close of that node, and has
# neither agents nor balancer nor list; a native cluster's clients have none of these either.
ALL_FAULTS = ("kill", "freeze", "alarm", "reload", "agent", "close", "drain")
NATIVE_FAULTS = ("kill", "freeze", "alarm")
DIRECT_FAULTS = ("freeze", "alarm")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The abilities of a system. module: its driver, see `bench.harness.interface`. brokers_max: of nodes.

    ways: the module with turns of its own, see `bench.harness.timed_turn`.

    batches, lifetimes, events: whether it supports `load.batch` above 1, `load.lifetime_s`, and rows of every
    message. faults: the possible faults of its brokers. prefetch_max: the most deliveries at once from a
    broker. own_load: whether it makes the load itself and reports the results; its messages have no fates
    here.
    """

    module: str
    brokers_max: int = 1
    durabilities: tuple[str, ...] = ("fsync",)
    acks: tuple[str, ...] = ("each",)
    batches: bool = False
    lifetimes: bool = False
    events: bool = False
    faults: tuple[str, ...] = ()
    prefetch_max: int = PREFETCH_MAX
    own_load: bool = False
    ways: str = ""


ARTEMIS = About(module="bench.clients.artemis", brokers_max=9, durabilities=WITHOUT_NONE, acks=ACKS)

SYSTEMS: Mapping[str, About] = {
    "messagebus": About(
        module="bench.clients.messagebus",
        brokers_max=99,
        durabilities=DURABILITIES,
        acks=("each", "none"),
        batches=True,
        lifetimes=True,
        events=True,
        faults=ALL_FAULTS,
        prefetch_max=OUR_PREFETCH_MAX,
        ways="bench.clients.messagebus_calls",
    ),
    "pika": About(module="bench.clients.pika", acks=ACKS, faults=DIRECT_FAULTS),
    "native": About(
        module="bench.clients.native",
        brokers_max=9,
        durabilities=WITHOUT_NONE,
        acks=("each", "none"),
        batches=True,
        faults=NATIVE_FAULTS,
        prefetch_max=OUR_PREFETCH_MAX,
    ),
    "pika-blocking": About(
        module="bench.clients.pika_blocking", acks=("each", "none"), faults=DIRECT_FAULTS
    ),
    "kombu": About(module="bench.clients.kombu", acks=("each", "none"), faults=DIRECT_FAULTS),
    "perf-test": About(
        module="bench.clients.perf_test", acks=ACKS, own_load=True, ways="bench.clients.perf_test"
    ),
    "aio-pika": About(module="bench.clients.aio_pika", acks=("each", "none"), faults=DIRECT_FAULTS),
    "kafka": About(
        module="bench.clients.kafka",
        brokers_max=9,
        durabilities=WITHOUT_NONE,
        acks=("each", "many"),
        batches=True,
    ),
    "nats": About(
        module="bench.clients.nats",
        brokers_max=9,
        durabilities=WITHOUT_NONE,
        acks=("each", "none"),
    ),
    "redis-streams": About(
        module="bench.clients.redis_streams", durabilities=WITHOUT_NONE, acks=("each", "none")
    ),
    "artemis": ARTEMIS,
    "artemis-cluster": ARTEMIS,
}
