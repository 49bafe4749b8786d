"""Clients of all languages consume beside each other while brokers are added, removed and killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from clients.conform.program import Program
from messagebus import Publisher, PublishError, declare
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.conform_clients import LANGUAGES, built
from tests.support.eventually import eventually
from tests.support.faults import bus_config
from tests.support.playbooks import ops

TOPIC, SUBSCRIPTION = "together", "together/all"
# Of an idle machine; the clients' own waits are multiplied by it.
PATIENCE = 6.0
PREFETCH = 20
PAUSE_S = 0.02
OWN_EACH = 20
RECEIVED_FIRST = 50
WITHIN_S = 120.0


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> LocalCluster:
    return make_cluster(brokers=3)


@pytest.fixture
def clients(cluster: LocalCluster, tmp_path: Path) -> Iterator[dict[str, Program]]:
    """Clients that consume one subscription, by language; each answers what it is given."""
    bus = bus_config(cluster)
    declare(bus, [SUBSCRIPTION])
    with ExitStack() as stack:
        programs = {}
        for language in ("python", *LANGUAGES):
            folder = tmp_path / language
            folder.mkdir()
            environ = cluster.client_env() | {
                "MESSAGEBUS_CLUSTER": cluster.layout.cluster,
                "MESSAGEBUS_CLIENT_ID": f"together-{language}",
            }
            command = built(language, folder)
            log = tmp_path / f"{language}.log"
            programs[language] = stack.enter_context(Program(command, environ, log, PATIENCE))
        for program in programs.values():
            program.ready()
            program.consume(SUBSCRIPTION, prefetch=PREFETCH)
        yield programs


class Load:
    """Publishes of one publisher until told to stop. confirmed: id -> its broker."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.confirmed: dict[str, str] = {}
        self.unsure: set[str] = set()
        self._stop = threading.Event()
        self._publisher = Publisher(bus_config(cluster))
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._publisher.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._publisher.stop()

    def end(self) -> None:
        """Publish no more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for _ in count():
            if self._stop.wait(PAUSE_S):
                return
            try:
                sent = self._publisher.send_safe(TOPIC, b"x", timeout_s=30)
            except PublishError as fault:
                self.unsure.add(fault.message_id)
                continue
            self.confirmed[sent.message_id] = sent.broker
            if sent.attempts > 1:
                self.unsure.add(sent.message_id)


def test_all_languages_together_lose_and_double_nothing(
    cluster: LocalCluster, clients: dict[str, Program]
) -> None:
    """Each gets its share all the time, and each one's own publishes arrive."""

    def got() -> Counter[str]:
        return Counter(each for program in clients.values() for each in program.ids)

    def each_goes_on() -> None:
        before = {name: len(program.ids) for name, program in clients.items()}
        eventually(
            lambda: all(len(p.ids) >= before[name] + 5 for name, p in clients.items()),
            within_s=WITHIN_S,
        )

    own = {name: [f"{name}-{n}" for n in range(OWN_EACH)] for name in clients}
    with Load(cluster) as load:
        eventually(lambda: len(got()) > RECEIVED_FIRST, within_s=WITHIN_S)
        each_goes_on()
        added = ops(cluster, "add", "mb4", "--yes")
        assert added.returncode == 0, added.stderr
        for name, program in clients.items():
            program.publish(TOPIC, own[name])
        each_goes_on()
        removed = ops(cluster, "remove", "mb2", "--yes")
        assert removed.returncode == 0, removed.stderr
        assert "0 messages are left in" in removed.stderr
        each_goes_on()
        quiet = dict(load.confirmed)
        eventually(lambda: quiet.keys() <= got().keys(), within_s=WITHIN_S)
        told = {name: program.settled(own[name]) for name, program in clients.items()}
        published = {each for ends in told.values() for each in ends if ends[each] == "confirmed"}
        unsure = {each for ends in told.values() for each in ends if ends[each] == "unknown"}
        eventually(lambda: published <= got().keys(), within_s=WITHIN_S)
        assert published | unsure == {each for ids in own.values() for each in ids}
        doubled = {each for each, times in got().items() if times > 1}
        assert doubled - load.unsure - unsure == set()

        killed = cluster.node("mb3").broker
        cluster.kill("mb3")
        each_goes_on()
        cluster.start("mb3")
        each_goes_on()
        load.end()
        eventually(lambda: load.confirmed.keys() <= got().keys(), within_s=WITHIN_S)
        # An ack that the killed broker did not apply is nobody's fault.
        doubled = {each for each, times in got().items() if times > 1}
        elsewhere = {each for each in doubled if load.confirmed.get(each, killed) != killed}
        assert elsewhere - load.unsure - unsure == set()
    print({name: len(program.ids) for name, program in clients.items()}, f"{len(doubled)} doubled")
    assert {name: program.stop() for name, program in clients.items()} == dict.fromkeys(clients, 0)
