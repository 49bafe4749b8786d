"""Sites that forward to each other: the line to each can be cut, a forwarder is a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from clients.conform.proxies import Proxy
from messagebus import BusConfig, Publisher
from tests.support.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 120.0


class Sites(Protocol):
    """Brokers, each a site by itself, and forwarders between them. A line is the names of two sites: ab.

    sent: the ids of all messages. lines: the way into the second site of each line. program: of a forwarder.
    """

    program: Sequence[str] = ("-m", "messagebus")

    topic: str
    folder: Path
    lines: dict[str, Proxy]
    sent: Counter[str]
    forwarders: dict[str, subprocess.Popen[str]]

    @abstractmethod
    def bus(self, site: str) -> BusConfig:
        """Return the settings of a client at this site."""

    @abstractmethod
    def left(self, line: str) -> int:
        """Return how many messages wait for this line's forwarder, those in its hands too."""

    def start(self, line: str) -> None:
        """Start the forwarder of a line."""
        here, there = self.bus(line[0]), self.bus(line[1])
        target = self.folder / f"{line}.toml"
        target.write_text(
            f'broker = "{self.lines[line].address}"\nuser = "{there.user}"\n'
            f'cluster = "{there.cluster}"\npassword = "{there.password.reveal()}"\n'
        )
        target.chmod(0o600)
        settings = {
            "MESSAGEBUS_BROKER": here.broker,
            "MESSAGEBUS_USER": here.user,
            "MESSAGEBUS_PASSWORD": here.password.reveal(),
            "MESSAGEBUS_CLUSTER": here.cluster,
        }
        self.forwarders[line] = subprocess.Popen(
            [sys.executable, *self.program, "forward", self.topic, "--to-bus", str(target)],
            cwd=ROOT,
            env={**os.environ, **settings},
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self, line: str) -> None:
        process = self.forwarders.pop(line)
        process.kill()
        process.communicate()

    def kill_all(self) -> None:
        for line in list(self.forwarders):
            self.kill(line)

    def stop(self, line: str) -> str:
        """Stop it, and return what it says at its end."""
        process = self.forwarders.pop(line)
        eventually(lambda: catches(process.pid, signal.SIGTERM), within_s=WITHIN_S)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate()
        assert process.returncode == 0, told
        return told

    def send(self, site: str, count: int) -> None:
        with Publisher(self.bus(site)) as publisher:
            ends = publisher.send_many(self.topic, [b"x" * 1_000] * count)
        self.sent.update(each.message_id for each in ends)

    def turns(self, *, some: int, many: int) -> None:
        """Cut the lines ab and ba in turn while both sites publish, and kill a forwarder in each turn.

        In the first two turns it is killed with its line cut, then while it catches up.
        """
        for turn in range(4):
            line = ("ab", "ba")[turn % 2]
            for site in "ab":
                self.send(site, some)
            with cut(self.lines[line]):
                self.send(line[0], many)
                self.send(line[1], some)
                self._eventually_left(line, lambda left: left >= many)
                if turn < 2:
                    self.kill(line)
                    self.start(line)
            if turn >= 2:
                self._eventually_left(line, lambda left: left < many)
                self.kill(line)
                self.start(line)

    def _eventually_left(self, line: str, is_so: Callable[[int], bool]) -> None:
        eventually(lambda: is_so(self.left(line)), within_s=WITHIN_S, what=f"{line} goes on")

    def forwarded(self) -> None:
        """Wait until nothing is left to forward on any line: what one has forwarded may go on on the next."""
        eventually(lambda: not any(map(self.left, self.lines)), within_s=WITHIN_S)


def assert_none_lost(sites: Sites, ids: Mapping[str, Counter[str]], *, doubles_max: int) -> None:
    """Check the ids that each site has: all, nothing else, and not too many of them twice."""
    for site, found in ids.items():
        assert found.keys() == sites.sent.keys(), "0 lost, and nothing else"
        # Of a killed forwarder: its confirm had not come, or its ack had not arrived.
        doubles = found.total() - len(found)
        print(f"site {site}: {len(found)} messages, 0 lost, {doubles} doubles")
        assert doubles <= doubles_max


@contextmanager
def cut(line: Proxy) -> Iterator[None]:
    """Cut a line, and let no connection through meanwhile."""
    line.refusing = True
    line.cut()
    try:
        yield
    finally:
        line.heal()


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has begun so far that this signal does not just end it."""
    (caught,) = re.findall(
        r"^SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return bool(int(caught, 16) >> (number - 1) & 1)
