"""Promise: sites that forward to each other have every message, whatever is cut or killed."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from clients.conform.proxies import Proxy
from messagebus import BusConfig
from messagebus._io.amqp.properties import read_message_id
from tests.support.eventually import FACTOR
from tests.support.fake_amqp import FakeRabbit, fake_rabbits
from tests.support.sites import WITHIN_S, Sites, assert_none_lost

SOME, MANY = 100, 500
# A forwarder that is killed at a step of its fiftieth message: STEP, then its own arguments.
DIES = """
import os, runpy, signal, sys
from messagebus.tools import forward

step, seen = sys.argv.pop(1), 0
place = forward.Forwarder if step == "confirmed" else forward._Spell
whole = getattr(place, step)

def stepped(*given):
    global seen
    seen += 1
    if seen == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*given)

setattr(place, step, stepped)
runpy.run_module("messagebus", run_name="__main__")
"""
# What a forwarder calls next: the message is read; its confirm is there; it is acked.
STEPS = ("_submit", "_ended", "confirmed")


class FakeSites(Sites):
    """Sites of brokers that speak AMQP, without RabbitMQ; their forwarders run."""

    def __init__(self, names: str, lines: tuple[str, ...], folder: Path, stack: ExitStack) -> None:
        self.topic, self.folder = "orders", folder
        self.rabbits = {name: FakeRabbit() for name in names}
        stack.enter_context(fake_rabbits(*self.rabbits.values()))
        self.sent, self.lines, self.forwarders = Counter(), {}, {}
        stack.callback(self.kill_all)
        for rabbit in self.rabbits.values():
            rabbit.hold(self.topic)
            rabbit.hold(f"{self.topic}/all")
        for line in lines:
            self.rabbits[line[0]].hold(f"{self.topic}/forward-{line[1]}")
            self.lines[line] = proxy = Proxy(self.rabbits[line[1]].name)
            stack.callback(proxy.close)
            self.start(line)

    def bus(self, site: str) -> BusConfig:
        return BusConfig(broker=self.rabbits[site].name, cluster=site)

    def left(self, line: str) -> int:
        rabbit = self.rabbits[line[0]]

        def count() -> int:
            queue = rabbit.queues[f"mb.sub/{self.topic}/forward-{line[1]}"]
            return len(queue.messages) + sum(each.owed for each in queue.consumers)

        return rabbit.on_loop(count)

    def ids(self) -> dict[str, Counter[str]]:
        """Return the ids that each site has, once nothing is left to forward."""
        self.forwarded()
        return {site: self._stored(rabbit) for site, rabbit in self.rabbits.items()}

    def _stored(self, rabbit: FakeRabbit) -> Counter[str]:
        stored = rabbit.on_loop(lambda: list(rabbit.queues[f"mb.sub/{self.topic}/all"].messages))
        return Counter(read_message_id(each.properties) for each in stored)


@pytest.mark.guarantee("forwarded-at-least-once")
def test_both_sites_have_every_message_though_both_lines_are_cut_in_turn_and_forwarders_killed(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        sites = FakeSites("ab", ("ab", "ba"), tmp_path, stack)
        sites.turns(some=SOME, many=MANY)
        assert_none_lost(sites, sites.ids(), doubles_max=4 * (MANY + 4 * SOME))
        # Each forwarder counts since its last start: one that came back late may have turned none away.
        said = [sites.stop(line) for line in ("ab", "ba")]
        assert any("had been there" in each for each in said)


@pytest.mark.guarantee("forward-loops-end")
def test_in_a_ring_of_three_sites_each_has_each_message_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sites = FakeSites("abc", ("ab", "bc", "ca"), tmp_path, stack)
        for site in "abc":
            sites.send(site, SOME)
        assert list(sites.ids().values()) == [sites.sent] * 3
        for line in ("ab", "bc", "ca"):
            assert f"forwarded {2 * SOME} messages, passed over {SOME}" in sites.stop(line)


class DyingSites(FakeSites):
    """Sites whose forwarders kill themselves at a step."""

    def __init__(self, step: str, folder: Path, stack: ExitStack) -> None:
        self.program = ("-c", DIES, step)
        super().__init__("ab", ("ab",), folder, stack)


@pytest.mark.guarantee("forwarded-at-least-once")
@pytest.mark.parametrize("step", STEPS)
def test_a_forwarder_that_is_killed_at_a_step_loses_nothing(tmp_path: Path, step: str) -> None:
    with ExitStack() as stack:
        sites = DyingSites(step, tmp_path, stack)
        sites.send("a", SOME)
        killed = sites.forwarders["ab"]
        killed.communicate(timeout=WITHIN_S * FACTOR)
        assert killed.returncode == -signal.SIGKILL
        sites.program = FakeSites.program
        sites.start("ab")
        assert_none_lost(sites, {"b": sites.ids()["b"]}, doubles_max=SOME)
