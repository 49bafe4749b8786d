"""Faults of applications: forks, restarts, destinations that are gone. Each checks its promise at its end."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import Future

from bench.errors import BenchError
from bench.faults import Fault
from bench.processes import wait_until
from bench.trials.outer_faults import SENT, WITHIN_S, Trial
from messagebus import (
    BusConfig,
    Consumer,
    Hooks,
    Publisher,
    Queue,
    Subscription,
    Topic,
    count_parked,
    purge_parked,
)
from messagebus.stats import Published
from ops.local.cluster import LocalCluster

# A queue's limit, and the number of stops of its consumer with everything unanswered.
DELIVERY_LIMIT, RESTARTS = 20, 25
# More than 32: a dead-letter worker that cannot forward 32 messages takes no more.
UNDELIVERED, STEPS_S = 100, (1, 5)
CHILDREN = 3


class _Forks(Trial):
    """A process that forks while it publishes, and has other publishers that are not started yet."""

    name = "forks"

    def begin(self) -> None:
        self.declared(Subscription(Topic(self.topic), "all"))
        # A process with one thread: ours has many, which a fork would stop in the middle of their work.
        child = multiprocessing.get_context("spawn").Process(
            target=_fork_and_publish, args=(self.cluster.client_env(), self.topic)
        )
        child.start()
        child.join(WITHIN_S)
        if child.exitcode != 0:
            child.kill()
            raise BenchError(f"forks: the publishing process ended with {child.exitcode}")

    def end(self) -> None:
        wanted = {b"%d-%d" % (who, number) for who in range(CHILDREN + 1) for number in range(SENT)}
        ids = dict[str, bytes]()
        with Consumer(self.bus, self.topic, subscription="all") as consumer:
            until_s = time.monotonic() + WITHIN_S
            while wanted - set(ids.values()) and time.monotonic() < until_s:
                if delivery := consumer.receive(timeout_s=1):
                    if ids.setdefault(delivery.message_id, delivery.body) != delivery.body:
                        raise BenchError(f"forks: two messages have the id {delivery.message_id}")
                    consumer.ack(delivery)
        if left := wanted - set(ids.values()):
            raise BenchError(f"forks: {len(left)} of {len(wanted)} never came")


def _fork_and_publish(environment: dict[str, str], topic: str) -> None:
    """Publish in a process of its own: the parent's link has messages under way at each fork."""
    bus = BusConfig.from_env(environment)
    made = [Publisher(bus, hooks=[Hooks()]) for _ in range(CHILDREN)]
    parent = Publisher(bus, hooks=[Hooks()])
    parent.start(require="one", timeout_s=WITHIN_S)
    children, open_ = list[int](), list[Future[Published]]()
    for number in range(SENT):
        open_.append(parent.submit(topic, b"0-%d" % number, timeout_s=WITHIN_S))
        if len(children) < CHILDREN:
            if child := os.fork():
                children.append(child)
            else:
                os._exit(_publish_in_child(made[len(children)], topic, len(children) + 1))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    ends = [each.result(timeout=WITHIN_S).outcome.value for each in open_]
    parent.stop()
    os._exit(int(any(codes) or set(ends) != {"confirmed"}))


def _publish_in_child(publisher: Publisher, topic: str, who: int) -> int:
    try:
        with publisher:
            bodies = [b"%d-%d" % (who, number) for number in range(SENT)]
            ends = publisher.send_many(topic, bodies, timeout_s=WITHIN_S)
        return int(any(each.outcome.value != "confirmed" for each in ends))
    except BaseException:
        return 2


class _Restarts(Trial):
    """A consumer with a delivery limit that is stopped more often than that, with everything unanswered."""

    name = "restarts"

    def begin(self) -> None:
        self._source = Subscription(Topic(self.topic), "all", delivery_limit=DELIVERY_LIMIT)
        self.declared(self._source)
        self._bodies = [b"%d" % number for number in range(SENT)]
        with Publisher(self.bus) as publisher:
            self.all_confirmed(publisher.send_many(self.topic, self._bodies, timeout_s=WITHIN_S))
        for _ in range(RESTARTS):
            with Consumer(self.bus, self._source) as consumer:
                # A copy whose confirm was not awaited by a stop increases their number.
                wait_until(
                    lambda consumer=consumer: _owed(consumer) >= SENT,  # type: ignore[misc]
                    within_s=WITHIN_S,
                    what=f"restarts: all {SENT} messages are delivered again",
                )

    def end(self) -> None:
        self.all_come(str(self._source), self._bodies)
        counts = count_parked(self.bus, [str(self._source)])
        if any(each.count for each in counts.counts):
            raise BenchError(f"restarts: parked though no handler has seen them: {counts.counts}")


def _owed(consumer: Consumer) -> int:
    return sum(each.owed for each in consumer.stats().brokers.values())


class _Undeliverable(Trial):
    """Delays and retries whose destination is gone when they are due; messages after them are in time."""

    name = "undeliverable"

    def begin(self) -> None:
        topic, queue = self.topic, f"{self.topic}-queue"
        self.declared(Subscription(Topic(topic), "doomed"), Queue(queue), Topic(f"{topic}-unread"))
        with (
            Publisher(self.bus) as publisher,
            Consumer(self.bus, topic, subscription="doomed") as consumer,
        ):
            ends = publisher.send_many(topic, [b"retry"] * SENT, timeout_s=WITHIN_S)
            for _ in range(SENT):
                delivery = consumer.receive(timeout_s=WITHIN_S)
                if delivery is None or not consumer.retry(delivery, after_s=STEPS_S[-1]):
                    raise BenchError("undeliverable: a retry was not taken")
            self.delete(f"{topic}/doomed")
            for after_s in STEPS_S:
                for name, bodies in (
                    (f"{topic}-unread", [b""] * UNDELIVERED),
                    (f"queue:{queue}", [b"%d" % after_s]),
                ):
                    ends += publisher.send_many(
                        name, bodies, deliver_after_s=after_s, timeout_s=WITHIN_S
                    )
        self.all_confirmed(ends)

    def end(self) -> None:
        self.all_come(f"queue:{self.topic}-queue", [b"%d" % after_s for after_s in STEPS_S])
        # Retries that were due before the deletion were deleted with the subscription.
        wait_until(
            lambda: self._kept() >= UNDELIVERED * len(STEPS_S),
            within_s=WITHIN_S,
            what=f"undeliverable: {UNDELIVERED * len(STEPS_S)} kept",
        )
        purge_parked(self.bus, ["undelivered"])

    def _kept(self) -> int:
        """Count the kept messages of this trial."""
        counts = count_parked(self.bus, ["undelivered"]).counts
        return sum(n for each in counts for why, n in each.reasons.items() if self.topic in why)


APPLICATION_FAULTS: dict[str, Callable[[LocalCluster, str], Fault]] = {
    each.name: each.fault for each in (_Forks, _Restarts, _Undeliverable)
}
