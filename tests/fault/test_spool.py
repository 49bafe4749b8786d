"""Promise: what was reported as spooled arrives, in order, though its process is killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from messagebus import BusConfig, Publisher
from messagebus._io.amqp.properties import read_message_id
from messagebus.admin import spool
from tests.support.eventually import FACTOR, eventually
from tests.support.fake_amqp import FakeRabbit
from tests.support.orders import QUEUE, TOPIC

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
ROUNDS = 8
LINES_MAX = 3_000

# Prints the id of each publish that ended, in the order of its calls.
PUBLISHING = """
import sys
from messagebus import BusConfig, Publisher, PublisherConfig, Spool
broker, folder, topic = sys.argv[1:]
config = PublisherConfig(deadline_s=60)
publisher = Publisher(BusConfig(broker=broker), config, spool=Spool(folder, after_s=0.05))
publisher.start()
number = 0
while True:
    futures = [publisher.submit(topic, b"%09d" % (number + each)) for each in range(20)]
    number += len(futures)
    for future in futures:
        end = future.result()
        print(end.outcome.value, end.message_id, flush=True)
"""


def publishing(broker: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISHING, broker, str(folder), TOPIC],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def killed(process: subprocess.Popen[str], after_lines: int) -> list[list[str]]:
    """Kill it after so many lines; return outcome and id of all whole ones."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(after_lines)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    return [line.split() for line in lines if line.endswith("\n")]


def arrived(rabbit: FakeRabbit) -> list[str]:
    return rabbit.on_loop(
        lambda: [read_message_id(each.properties) for each in rabbit.queues[QUEUE].messages]
    )


@pytest.mark.guarantee("spooled-is-sent-later")
@pytest.mark.guarantee("spool-keeps-order")
def test_every_spooled_message_arrives_in_order_though_its_process_is_killed_at_any_moment(
    rabbit: FakeRabbit, tmp_path: Path
) -> None:
    """Processes are killed without a broker, with one that comes back, and with one that is there."""
    chance = random.Random(5)
    told: list[list[list[str]]] = []
    for turn in range(ROUNDS):
        kind = turn % 3
        if kind < 2:
            rabbit.block()  # takes nothing, as in an alarm
        process = publishing(rabbit.name, tmp_path)
        assert process.stdout is not None
        first = process.stdout.readline().split()
        if kind == 1:
            rabbit.unblock()
        lines = killed(process, chance.randrange(LINES_MAX))
        told.append([first, *lines])
        rabbit.unblock()
    with Publisher(BusConfig(broker=rabbit.name), spool=tmp_path) as publisher:
        publisher.flush()
        eventually(lambda: not publisher.stats().spool_messages, within_s=WITHIN_S)
        assert publisher.stats().spool_damaged == 0
    spooled = [name for lines in told for outcome, name in lines if outcome == "spooled"]
    assert len(spooled) > 100
    found = arrived(rabbit)
    assert {outcome for lines in told for outcome, _ in lines} <= {"spooled", "confirmed"}
    assert {name for lines in told for _, name in lines} <= set(found)
    firsts = {name: place for place, name in reversed(list(enumerate(found)))}
    for lines in told:
        places = [firsts[name] for _, name in lines]
        assert places == sorted(places), "one of a publisher was overtaken"


def test_an_interpreter_that_exits_without_a_broker_leaves_everything_on_the_disk(
    tmp_path: Path,
) -> None:
    code = """
import sys
from messagebus import BusConfig, Publisher
publisher = Publisher(BusConfig(broker="127.0.0.1:1"), spool=sys.argv[1])
publisher.start()
for number in range(100):
    publisher.send("orders", b"%d" % number)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60 * FACTOR,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    bodies = [each.message.body for each in spool.read_spool(tmp_path)]
    assert bodies == [b"%d" % number for number in range(100)]


def test_a_file_size_limit_of_the_process_is_a_full_disk(tmp_path: Path) -> None:
    """The limit is the kernel's own way to refuse a write in its middle."""
    code = """
import resource, signal, sys
from messagebus import BusConfig, Outcome, Publisher, Spool
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
publisher = Publisher(BusConfig(broker="127.0.0.1:1"), spool=Spool(sys.argv[1], after_s=0))
publisher.start()
ends = [publisher.submit("orders", b"x" * 30_000).result() for _ in range(10)]
assert {end.outcome for end in ends} == {Outcome.SPOOLED}, ends
big = publisher.submit("orders", b"x" * 200_000, timeout_s=1.5).result()
assert big.outcome is Outcome.REFUSED and "File too large" in big.reason, big
after = publisher.submit("orders", b"after").result()
assert after.outcome is Outcome.SPOOLED, after
publisher.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60 * FACTOR,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sizes = [len(each.message.body) for each in spool.read_spool(tmp_path)]
    assert sizes == [30_000] * 10 + [5]
