"""Publishing and receiving at full speed: tables of our ways, the peers that can do the same, and the goals.

Publishing is safe: every client publishes persistent, mandatory messages with an id of their own to the same
exchange, from one process, and counts a message when its confirm has arrived. Of received messages ours note
each id and ack each delivery by itself, and send the acks together. The peers answer many at once where
their interface allows it; aio-pika has no other way than to answer each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from bench.figures.full_speed import Against, Line, Table, sized
from bench.figures.groups import Setup
from bench.harness.loop import best_loop
from bench.harness.timed_turn import Task

# A turn lasts some 2 s: long against the window, short against changes of the machine's load.
SENT, PIKA, AIO_PIKA, ONE_BY_ONE = 60_000, 40_000, 15_000, 2_500
AIO_PIKA_WINDOW = 500
PERF_TEST_SENDS_S = 8.0
# Way -> the part of the ids after the window.
WAYS = {"submit": "", "send_many": "send_many."}
# Window -> way -> the greatest ratio allowed of our CPU time a message to pika's asynchronous adapter's.
CPU_GOALS = {1000: {"submit": 0.33, "send_many": 0.25}, 50: {"submit": 0.35, "send_many": 0.35}}
# Peer -> window -> the least ratio required of our rate to the peer's. The broker limits quick peers, too.
RATIO_GOALS: dict[str, dict[int, float]] = {
    "perf_test": {1000: 1.0, 50: 1.0},
    "pika_async": {50: 1.25},
    "pika_blocking": {1000: 15.0},
    "aio_pika": {1000: 2.5},
    "kombu": {1000: 15.0},
}
# Peers with a window of their own, independent of ours.
OF_ANY_WINDOW = {
    "aio_pika": f"aio-pika, window {AIO_PIKA_WINDOW}",
    "pika_blocking": "pika's BlockingConnection, one by one",
    "kombu": "kombu with confirms, one by one",
}
WINDOW_PEERS = {"pika_async": "pika's asynchronous adapter by hand", "perf_test": "Java PerfTest"}
# Publisher.send_safe: threads -> messages of a turn, summed over all of them; the wanted ratio to one thread.
THREADS, THREADS_GOALS = {1: 2_500, 8: 10_000, 64: 30_000}, {64: 5.0}


def publish(task: Task, setup: Setup) -> Table:
    """Our clients and the peers, in the order of the first repetition."""
    table = Table()

    def line(name: str, id: str, what: str, messages: int, **options: Any) -> Line:
        task_of = replace(sized(task, setup, messages), **options)
        table.lines.append(Line(name, id, what, task_of))
        return table.lines[-1]

    loop, ours = best_loop(), []
    of: dict[str, Any]
    for window, cpu_goals in CPU_GOALS.items():
        at, said = f"w{window}", f"Safe publishes of 1 KB, window {window}"
        for way, infix in WAYS.items():
            what, of = f"{said}, AsyncPublisher.{way}", {"window": window, "way": way}
            one = line(f"{at}.{way}", f"{at}.{infix}", what, SENT, loop=loop, **of)
            ours.append((window, one))
            table.against.append(_cpu_beside_pika(one, f"{at}.pika_async", cpu_goals[way]))
        what, of = f"{said}, blocking submit", {"window": window, "way": "submit_blocking"}
        line(f"{at}.blocking", f"{at}.blocking_", what, SENT, **of)
        said, of = f"{WINDOW_PEERS['pika_async']}, window {window}", {"window": window}
        line(f"{at}.pika_async", f"{at}.pika_async_", said, PIKA, system="pika", **of)
        said = f"{WINDOW_PEERS['perf_test']}, window {window}"
        of |= {"seconds": 2.0 if setup.quick else PERF_TEST_SENDS_S}
        line(f"{at}.perf_test", f"{at}.perf_test_", said, SENT, system="perf-test", **of)
    what, of = OF_ANY_WINDOW["aio_pika"], {"window": AIO_PIKA_WINDOW, "loop": loop}
    line("aio_pika", "aio_pika_", what, AIO_PIKA, system="aio-pika", **of)
    for peer, system in (("pika_blocking", "pika-blocking"), ("kombu", "kombu")):
        line(peer, f"{peer}_", OF_ANY_WINDOW[peer], ONE_BY_ONE, system=system)
    for window, one in ours:
        for peer, goals in RATIO_GOALS.items():
            told = OF_ANY_WINDOW.get(peer) or f"{WINDOW_PEERS[peer]} at the same window"
            other = peer if peer in OF_ANY_WINDOW else f"w{window}.{peer}"
            what = f"{one.what}: how many times as fast as {told}"
            id, wanted = f"{one.id}ratio_{peer}", goals.get(window)
            table.against.append(Against(one.name, other, id, what, wanted))
    return table


def _cpu_beside_pika(line: Line, pika: str, goal: float) -> Against:
    what = f"{line.what}: CPU time of the client, of that of {WINDOW_PEERS['pika_async']}"
    return Against(line.name, pika, f"{line.id}cpu_ratio_pika_async", what, goal, of_cpu=True)


def threads(task: Task, setup: Setup) -> Table:
    """`Publisher.send_safe` from several threads at once, which share one window."""
    table, sending = Table(), replace(task, way="send_safe", window=1000)
    for count, messages in THREADS.items():
        words = "one thread" if count == 1 else f"{count} threads"
        shared, what = sized(sending, setup, messages), f"Publisher.send_safe of 1 KB from {words}"
        table.lines.append(Line(f"{count}", f"{count}.", what, replace(shared, threads=count)))
        if count > 1:
            ratio = f"Publisher.send_safe: {words}, how many times as fast as one"
            goal = THREADS_GOALS.get(count)
            table.against.append(Against(f"{count}", "1", f"{count}.ratio", ratio, goal))
    return table


class Size(NamedTuple):
    """Batches of `batch` messages of body_bytes. messages, unbatched: of a turn.

    ratio, cpu: verb -> the least ratio required to the unbatched rate, the greatest allowed to pika's CPU.
    """

    name: str
    batch: int
    body_bytes: int
    messages: int
    unbatched: int
    ratio: Mapping[str, float]
    cpu: Mapping[str, float]


SIZES = (
    Size(
        *("50x200", 50, 200, 600_000, 60_000),
        ratio={"publish": 8.0, "consume": 1.5},
        cpu={"publish": 0.1, "consume": 0.3},
    ),
    Size(
        *("16x1k", 16, 1024, 150_000, 60_000),
        ratio={"publish": 2.5, "consume": 1.5},
        cpu={"publish": 0.15, "consume": 0.3},
    ),
)
# Publishes in the window, and batches that a broker may have under way to a consumer.
BATCHES, PREFETCH, UNBATCHED_WINDOW = 50, 200, 1000


def batch(task: Task, setup: Setup) -> Table:
    """Several messages in one AMQP message, each with its own id, outcome and ack; and one by one."""
    table = Table()
    for verb, way, done in (
        ("publish", "send_many", "Safe publishes"),
        ("consume", "receive", "Received and acked"),
    ):
        for size in SIZES:
            name, said = f"{verb}.{size.name}", f"{done} of {size.body_bytes} bytes"
            what, window = f"{said}, {size.batch} in a batch", PREFETCH * size.batch
            if verb == "publish":
                what += f", {BATCHES} batches in the window, AsyncPublisher.send_many"
                window = BATCHES
            common = replace(task, verb=verb, way=way, body_bytes=size.body_bytes, loop=best_loop())
            packed = replace(sized(common, setup, size.messages), batch=size.batch, window=window)
            single = replace(sized(common, setup, size.unbatched), window=UNBATCHED_WINDOW)
            alone = f"{name}.unbatched"
            pika, by_hand = f"{name}.pika_async", f"{said}, {WINDOW_PEERS['pika_async']}"
            other = replace(sized(common, setup, PIKA), system="pika", window=UNBATCHED_WINDOW)
            ours = Line(name, f"{name}.", what, packed)
            unbatched = Line(alone, f"{alone}_", f"{said}, unbatched", single)
            table.lines.extend((ours, unbatched, Line(pika, f"{pika}_", by_hand, other)))
            ratio = f"{what}: how many times as fast as unbatched"
            table.against.append(Against(name, alone, f"{name}.ratio", ratio, size.ratio[verb]))
            table.against.append(_cpu_beside_pika(ours, pika, size.cpu[verb]))
    return table


# Two publishes and two confirms of each message, in frames and writes of their own.
CPU_GOALS_REDUNDANT = {"submit": 2.5, "send_many": 3.0}


def redundant(task: Task, setup: Setup) -> Table:
    """Two confirms of two brokers against one of one, through HAProxy."""
    table = Table()
    base = replace(task, env=setup.cluster.client_env(), window=1000, loop=best_loop())
    for way, infix in WAYS.items():
        once = replace(sized(base, setup, SENT), way=way)
        twice = replace(once, redundant=True)
        what = f"Safe publishes of 1 KB through HAProxy, window 1000, AsyncPublisher.{way}"
        both = f"{what}, confirmed by two brokers"
        table.lines.append(Line(f"{way}.once", f"{infix}plain_", what, once))
        table.lines.append(Line(f"{way}.twice", infix, both, twice))
        for of_cpu, name, said, goal in (
            (False, "ratio", "how many times as fast as on one broker", 0.45),
            (
                True,
                "cpu_ratio",
                "CPU time of the client against one broker",
                CPU_GOALS_REDUNDANT[way],
            ),
        ):
            one, other, id = f"{way}.twice", f"{way}.once", f"{infix}{name}"
            table.against.append(Against(one, other, id, f"{both}: {said}", goal, of_cpu))
    return table


WINDOW = 1000
WHAT = "Received and acked, 1 KB"
# Line -> way, the rest of its description.
OURS = {
    "ours": ("receive", "AsyncConsumer"),
    "dedup": ("receive_dedup", "AsyncConsumer with deduplication in memory"),
    "many": ("receive_many", "AsyncConsumer.receive_many"),
    "blocking": ("receive_blocking", "blocking Consumer"),
    "blocking_many": ("receive_many_blocking", "blocking Consumer.receive_many"),
}
CPU_GOAL_CONSUME = 0.4
# With what pika lacks ours still costs less than pika by hand without it.
CPU_GOAL_MORE = 1.0
# Line -> system, its description, messages of a turn, the wanted ratio of our rate to its rate. PerfTest runs
# for a given time; its number makes the queue last for some seconds after its warm-up.
PEERS = {
    "pika_async": ("pika", "pika's asynchronous adapter by hand", 60_000, None),
    "aio_pika": ("aio-pika", "aio-pika", 20_000, 5.0),
    "perf_test": ("perf-test", "Java PerfTest", 400_000, 1.0),
}
MESSAGES, PERF_TEST_S = 100_000, 6.0


def consume(task: Task, setup: Setup) -> Table:
    """Every client with the same window, from a quorum queue at one broker."""
    task, table = replace(task, verb="consume", window=WINDOW), Table()
    for name, (way, what) in OURS.items():
        loop = "asyncio" if name.startswith("blocking") else best_loop()
        made = replace(sized(task, setup, MESSAGES), way=way, loop=loop)
        id, what = "" if name == "ours" else f"{name}_", f"{WHAT}, {what}"
        table.lines.append(Line(name, id, what, made))
    for name, (system, what, messages, goal) in PEERS.items():
        made = replace(sized(task, setup, messages), system=system)
        if name == "aio_pika":
            made = replace(made, loop=best_loop())
        if name == "perf_test":
            # Java is not warm before its third second, so a quick run has as many messages for it.
            made = replace(made, messages=messages, warm_up=0, seconds=PERF_TEST_S)
        table.lines.append(Line(name, f"{name}_", what, made))
        ratio = f"{table.lines[0].what}: how many times as fast as {what}"
        table.against.append(Against("ours", name, f"ratio_{name}", ratio, goal))
    table.against.append(_cpu_beside_pika(table.lines[0], "pika_async", CPU_GOAL_CONSUME))
    dedup = table.line("dedup")
    table.against.append(_cpu_beside_pika(dedup, "pika_async", CPU_GOAL_MORE))
    what = f"{dedup.what}: CPU time of the client, of that without"
    table.against.append(Against("dedup", "ours", "dedup_cpu_ratio", what, of_cpu=True))
    return table


RUN, APP = "AsyncConsumer.run", "@app.subscriber"
FEW = 0.01
# Line -> way, its description, the part of the messages that is traced.
HANDLERS = {
    "run": ("run", f"{RUN} with a coroutine function", 0),
    "run_threads": ("run_threads", f"{RUN} with a plain function in a thread", 0),
    "app": ("app", f"{APP}, the payload as bytes", 0),
    "app_typed": ("app_typed", f"{APP}, 1 KB of JSON as a dataclass", 0),
    "run_by_hand": (
        "run_by_hand",
        f"{RUN} with a function that calls OpenTelemetry's SDK for the same telemetry",
        1,
    ),
    "run_otel": ("run", f"{RUN} with OpenTelemetry on, every message traced", 1),
    "run_otel_few": ("run", f"{RUN} with OpenTelemetry on, one message in a hundred traced", FEW),
    "app_otel": ("app", f"{APP} with OpenTelemetry on, every message traced", 1),
}
# Line -> the other, how that is called, and the greatest ratio allowed of the CPU times.
HANDLERS_GOALS: dict[str, tuple[str, str, float | None]] = {
    "run": ("receive", "a loop over AsyncConsumer", 2.0),
    "app": ("receive", "a loop over AsyncConsumer", None),
    "run_otel": ("run_by_hand", "a function that calls the SDK for the same telemetry", 1.2),
}
HANDLED = 60_000


def handlers(task: Task, setup: Setup) -> Table:
    """`run` and the decorator, against a loop over the same consumer that does the same work."""
    consuming = replace(task, verb="consume", window=WINDOW, loop=best_loop(), typed=True)
    plain = replace(sized(consuming, setup, HANDLED), way="receive")
    what = f"{WHAT}, a loop over AsyncConsumer"
    table = Table([Line("receive", "receive_", what, plain)])
    for name, (way, what, traced) in HANDLERS.items():
        made = replace(plain, way=way, traced=traced)
        table.lines.append(Line(name, f"{name}_", what, made))
    for name, (other, called, goal) in HANDLERS_GOALS.items():
        what = f"{HANDLERS[name][1]}: CPU time a message, of that of {called}"
        table.against.append(Against(name, other, f"{name}_ratio", what, goal, of_cpu=True))
    pika = replace(sized(consuming, setup, PEERS["pika_async"][2]), system="pika")
    table.lines.append(Line("pika_async", "pika_async_", WINDOW_PEERS["pika_async"], pika))
    table.against.append(_cpu_beside_pika(table.line("app"), "pika_async", CPU_GOAL_MORE))
    return table
