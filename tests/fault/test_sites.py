"""Promise: sites that forward to each other have every message, whatever is cut or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from clients.conform.proxies import Proxy
from messagebus import BusConfig, Publisher
from messagebus._io.amqp.properties import read_message_id
from tests.support.eventually import eventually
from tests.support.fake_amqp import FakeRabbit, fake_rabbits

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
SOME, MANY = 100, 500
TOPIC = "orders"


class Sites:
    """Brokers that speak AMQP, each a site by itself, and forwarders with a line each, as processes."""

    def __init__(self, names: str, lines: tuple[str, ...], folder: Path, stack: ExitStack) -> None:
        self.rabbits = {name: FakeRabbit() for name in names}
        stack.enter_context(fake_rabbits(*self.rabbits.values()))
        stack.callback(self._kill_all)
        self.sent = Counter[str]()
        self.lines: dict[str, Proxy] = {}
        self._folder = folder
        self._forwarders: dict[str, subprocess.Popen[str]] = {}
        for rabbit in self.rabbits.values():
            rabbit.hold(TOPIC)
            rabbit.hold(f"{TOPIC}/all")
        for line in lines:
            self.rabbits[line[0]].hold(f"{TOPIC}/forward-{line[1]}")
            self.lines[line] = proxy = Proxy(self.rabbits[line[1]].name)
            stack.callback(proxy.close)
            self.start(line)

    def start(self, line: str) -> None:
        target = self._folder / f"{line}.toml"
        target.write_text(f'broker = "{self.lines[line].address}"\ncluster = "{line[1]}"\n')
        settings = {
            "MESSAGEBUS_BROKER": self.rabbits[line[0]].name,
            "MESSAGEBUS_CLUSTER": line[0],
        }
        self._forwarders[line] = subprocess.Popen(
            [sys.executable, "-m", "messagebus", "forward", TOPIC, "--to-bus", str(target)],
            cwd=ROOT,
            env={**os.environ, **settings},
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self, line: str) -> None:
        process = self._forwarders.pop(line)
        process.kill()
        process.communicate()

    def _kill_all(self) -> None:
        for line in list(self._forwarders):
            self.kill(line)

    def stop(self, line: str) -> str:
        """Stop it, and return what it says at its end."""
        process = self._forwarders.pop(line)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate()
        assert process.returncode == 0, told
        return told

    def send(self, site: str, count: int) -> None:
        with Publisher(BusConfig(broker=self.rabbits[site].name)) as publisher:
            ends = publisher.send_many(TOPIC, [b"x" * 1_000] * count)
        self.sent.update(each.message_id for each in ends)

    def left(self, line: str) -> int:
        """Return how many messages that line has to forward, those in a forwarder's hands too."""
        rabbit = self.rabbits[line[0]]

        def count() -> int:
            queue = rabbit.queues[f"mb.sub/{TOPIC}/forward-{line[1]}"]
            return len(queue.messages) + sum(each.owed for each in queue.consumers)

        return rabbit.on_loop(count)

    def ids(self, site: str) -> Counter[str]:
        rabbit = self.rabbits[site]
        stored = rabbit.on_loop(lambda: list(rabbit.queues[f"mb.sub/{TOPIC}/all"].messages))
        return Counter(read_message_id(each.properties) for each in stored)

    def everywhere(self) -> None:
        """Wait until nothing is left to forward, and every site has every message."""
        eventually(lambda: not any(map(self.left, self.lines)), within_s=WITHIN_S)
        for site in self.rabbits:
            assert self.ids(site).keys() == self.sent.keys(), "0 lost, and nothing else"


@contextmanager
def cut(line: Proxy) -> Iterator[None]:
    line.refusing = True
    line.cut()
    try:
        yield
    finally:
        line.heal()


@pytest.mark.guarantee("forwarded-at-least-once")
def test_both_sites_have_every_message_though_both_lines_are_cut_in_turn_and_forwarders_killed(
    tmp_path: Path,
) -> None:
    """In the turns a forwarder is killed with its line cut, and while it catches up."""
    with ExitStack() as stack:
        sites = Sites("ab", ("ab", "ba"), tmp_path, stack)
        for turn in range(4):
            line = ("ab", "ba")[turn % 2]
            sites.send("a", SOME)
            sites.send("b", SOME)
            with cut(sites.lines[line]):
                sites.send(line[0], MANY)
                sites.send(line[1], SOME)
                eventually(lambda: sites.left(line) >= MANY, within_s=WITHIN_S)  # noqa: B023
                if turn < 2:
                    sites.kill(line)
                    sites.start(line)
            if turn >= 2:
                eventually(lambda: sites.left(line) < MANY, within_s=WITHIN_S)  # noqa: B023
                sites.kill(line)
                sites.start(line)
        sites.everywhere()
        assert all("had been there" in sites.stop(line) for line in ("ab", "ba"))
        doubles = {site: sites.ids(site).total() - len(sites.sent) for site in "ab"}
        print(f"{len(sites.sent)} messages, 0 lost, doubles: {doubles}")
        assert sum(doubles.values()) <= 4 * (MANY + 4 * SOME), "what was under way at four kills"


@pytest.mark.guarantee("forward-loops-end")
def test_in_a_ring_of_three_sites_each_has_each_message_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sites = Sites("abc", ("ab", "bc", "ca"), tmp_path, stack)
        for site in "abc":
            sites.send(site, SOME)
        sites.everywhere()
        assert [sites.ids(site) for site in "abc"] == [sites.sent] * 3
        for line in ("ab", "bc", "ca"):
            assert f"forwarded {2 * SOME} messages, passed over {SOME}" in sites.stop(line)
