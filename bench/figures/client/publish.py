"""Safe publishing: tables of our ways, the peers that can do the same, and the goals.

Every client publishes persistent, mandatory messages with an id of their own to the same exchange, from
one process, and counts a message when its confirm has arrived.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from bench.figures.scene import Scene
from bench.figures.turns import Against, Line, Table, sized
from bench.harness.loop import best_loop
from bench.harness.turn import Task

# A turn lasts some 2 s: long against the window, short against changes of the machine's load.
OURS, PIKA, AIO_PIKA, ONE_BY_ONE = 60_000, 40_000, 15_000, 2_500
AIO_PIKA_WINDOW = 500
PERF_TEST_S = 8.0
# Way -> the part of the ids after the window.
WAYS = {"submit": "", "send_many": "send_many."}
CPU_GOALS_US = {1000: 4.0, 50: 6.0}
# Peer -> window -> the wanted ratio of our rate to the peer's.
RATIO_GOALS: dict[str, dict[int, float]] = {
    "perf_test": {1000: 1.0, 50: 1.0},
    "pika_async": {50: 1.5},
    "pika_blocking": {1000: 20.0},
    "aio_pika": {1000: 8.0},
    "kombu": {},
}
# Peers with a window of their own, independent of ours.
OF_ANY_WINDOW = {
    "aio_pika": f"aio-pika, window {AIO_PIKA_WINDOW}",
    "pika_blocking": "pika's BlockingConnection, one by one",
    "kombu": "kombu with confirms, one by one",
}
OF_EACH_WINDOW = {"pika_async": "pika's asynchronous adapter by hand", "perf_test": "Java PerfTest"}
# Publisher.send_safe: threads -> messages of a turn, summed over all of them; the wanted ratio to one thread.
THREADS, THREADS_GOALS = {1: 2_500, 8: 10_000, 64: 30_000}, {64: 5.0}
# The window of a publisher without settings.
DEFAULT_WINDOW = 512


def publish(task: Task, scene: Scene) -> Table:
    """Our clients and the peers, in the order of the first repetition."""
    table = Table()

    def line(name: str, id: str, what: str, messages: int, **options: Any) -> Line:
        cpu = options.pop("cpu", None)
        task_of = replace(sized(task, scene, messages), **options)
        table.lines.append(Line(name, id, what, task_of, cpu=cpu))
        return table.lines[-1]

    loop, ours = best_loop(), []
    of: dict[str, Any]
    for window, goal in CPU_GOALS_US.items():
        at, said = f"w{window}", f"Safe publishes of 1 KB, window {window}"
        for way, infix in WAYS.items():
            what, of = f"{said}, AsyncPublisher.{way}", {"window": window, "way": way}
            one = line(f"{at}.{way}", f"{at}.{infix}", what, OURS, loop=loop, cpu=goal, **of)
            ours.append((window, one))
        what, of = f"{said}, blocking submit", {"window": window, "way": "submit_blocking"}
        line(f"{at}.blocking", f"{at}.blocking_", what, OURS, **of)
        said, of = f"{OF_EACH_WINDOW['pika_async']}, window {window}", {"window": window}
        line(f"{at}.pika_async", f"{at}.pika_async_", said, PIKA, system="pika", **of)
        said = f"{OF_EACH_WINDOW['perf_test']}, window {window}"
        of |= {"seconds": 2.0 if scene.quick else PERF_TEST_S}
        line(f"{at}.perf_test", f"{at}.perf_test_", said, OURS, system="perf-test", **of)
    what, of = OF_ANY_WINDOW["aio_pika"], {"window": AIO_PIKA_WINDOW, "loop": loop}
    line("aio_pika", "aio_pika_", what, AIO_PIKA, system="aio-pika", **of)
    for peer, system in (("pika_blocking", "pika-blocking"), ("kombu", "kombu")):
        line(peer, f"{peer}_", OF_ANY_WINDOW[peer], ONE_BY_ONE, system=system)
    for window, one in ours:
        for peer, goals in RATIO_GOALS.items():
            told = OF_ANY_WINDOW.get(peer) or f"{OF_EACH_WINDOW[peer]} at the same window"
            other = peer if peer in OF_ANY_WINDOW else f"w{window}.{peer}"
            what = f"{one.what}: how many times as fast as {told}"
            id, wanted = f"{one.id}ratio_{peer}", goals.get(window)
            table.against.append(Against(one.name, other, id, what, wanted))
    return table


def threads(task: Task, scene: Scene) -> Table:
    """`Publisher.send_safe` from several threads at once, which share one window."""
    table, sending = Table(), replace(task, way="send_safe", window=1000)
    for count, messages in THREADS.items():
        words = "one thread" if count == 1 else f"{count} threads"
        shared, what = sized(sending, scene, messages), f"Publisher.send_safe of 1 KB from {words}"
        table.lines.append(Line(f"{count}", f"{count}.", what, replace(shared, threads=count)))
        if count > 1:
            ratio = f"Publisher.send_safe: {words}, how many times as fast as one"
            goal = THREADS_GOALS.get(count)
            table.against.append(Against(f"{count}", "1", f"{count}.ratio", ratio, goal))
    return table


class Size(NamedTuple):
    """Batches of `batch` messages of body_bytes. messages, unbatched: of a turn. The rest are goals."""

    name: str
    batch: int
    body_bytes: int
    messages: int
    unbatched: int
    ratio: float
    rate: float | None = None
    cpu: float | None = None


SIZES = (
    Size("50x200", 50, 200, 600_000, 60_000, ratio=8.0, rate=200_000.0, cpu=2.0),
    Size("16x1k", 16, 1024, 150_000, 60_000, ratio=2.5),
)
# Publishes in the window, and batches that a broker may have under way to a consumer.
BATCHES, PREFETCH, UNBATCHED_WINDOW = 50, 200, 1000


def batch(task: Task, scene: Scene) -> Table:
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
            packed = replace(sized(common, scene, size.messages), batch=size.batch, window=window)
            single = replace(sized(common, scene, size.unbatched), window=UNBATCHED_WINDOW)
            alone = f"{name}.unbatched"
            table.lines.append(Line(name, f"{name}.", what, packed, size.rate, size.cpu))
            table.lines.append(Line(alone, f"{alone}_", f"{said}, unbatched", single))
            ratio = f"{what}: how many times as fast as unbatched"
            table.against.append(Against(name, alone, f"{name}.ratio", ratio, size.ratio))
    return table


def through_haproxy(task: Task, scene: Scene) -> Table:
    """Our blocking client against pika's, both through HAProxy."""
    task = replace(task, env=scene.cluster.client_env(), window=DEFAULT_WINDOW)
    ours = replace(sized(task, scene, 20_000), way="submit_blocking")
    peer = replace(sized(task, scene, 1_500), system="pika-blocking")
    what = "Safe publishes of 1 KB through HAProxy, pipelined, one process"
    other = "The same with pika's BlockingConnection and confirms"
    ratio = "How many times faster than pika's BlockingConnection"
    return Table(
        [Line("ours", "", what, ours), Line("pika", "pika_", other, peer)],
        [Against("ours", "pika", "ratio", ratio, 8.0)],
    )


def redundant(task: Task, scene: Scene) -> Table:
    """Two confirms of two brokers against one of one, through HAProxy."""
    table = Table()
    base = replace(task, env=scene.cluster.client_env(), window=1000, loop=best_loop())
    for way, infix in WAYS.items():
        once = replace(sized(base, scene, OURS), way=way)
        twice = replace(once, redundant=True)
        what = f"Safe publishes of 1 KB through HAProxy, window 1000, AsyncPublisher.{way}"
        both = f"{what}, confirmed by two brokers"
        table.lines.append(Line(f"{way}.once", f"{infix}plain_", what, once))
        table.lines.append(Line(f"{way}.twice", infix, both, twice))
        for of_cpu, name, said, goal in (
            ("", "ratio", "how many times as fast as on one broker", 0.45),
            ("ratio", "cpu_ratio", "CPU time of the client against one broker", 1.6),
        ):
            one, other, id = f"{way}.twice", f"{way}.once", f"{infix}{name}"
            table.against.append(Against(one, other, id, f"{both}: {said}", goal, of_cpu))
    return table
