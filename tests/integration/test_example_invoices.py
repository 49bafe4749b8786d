"""The sample application `invoices`, while a broker and a worker are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pytest

from messagebus import App, BusConfig, Message, PublisherConfig, declare
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.eventually import FACTOR, eventually_async
from tests.support.killed import children_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
EXAMPLE = EXAMPLES / "invoices"
COMMAND_WITHIN_S = 300 * FACTOR
HANDLED_WITHIN_S = 120
ORDERS, SLICE = 3_000, 100
PUBLISH_WITHIN_S = 60


def run(*argv: str | Path, cwd: Path, **environ: str) -> str:
    """Run a command to its end; its output is shown when it fails."""
    done = subprocess.run(
        [str(each) for each in argv],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=COMMAND_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


class Service:
    """Two worker processes on a cluster, and their record."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.file = folder / "invoices.sqlite"
        self.environ = {
            **os.environ,
            **cluster.client_env(),
            "PYTHONPATH": f"{ROOT}:{EXAMPLE}",
            "INVOICES_FILE": str(self.file),
        }
        self._log = (folder / "worker.log").open("w")
        command = [sys.executable, "-m", "messagebus", "worker", "invoices.app:app"]
        self.process = subprocess.Popen(
            [*command, "--processes", "2"], cwd=folder, env=self.environ, stderr=self._log
        )

    def kill_a_worker(self) -> None:
        os.kill(children_of(self.process.pid)[0], signal.SIGKILL)

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(60 * FACTOR)
        finally:
            self._log.close()

    def seen(self) -> dict[str, int]:
        code = "import json; from invoices.app import archive; print(json.dumps(archive.seen()))"
        found: dict[str, int] = json.loads(
            run(sys.executable, "-c", code, cwd=EXAMPLE, **self.environ)
        )
        return found


@pytest.fixture
def broken_cluster(make_cluster: MakeCluster) -> LocalCluster:
    """A cluster of its own: the subscriptions of the application are those of other tests' documents."""
    return make_cluster(3)


def parked(cluster: LocalCluster) -> list[str]:
    """Return the message ids in the parking queue, over all brokers; they stay there."""
    wanted = {"count": 100_000, "ackmode": "ack_requeue_true", "encoding": "base64"}
    path = f"/api/queues/%2F/{quote('mb.park/orders/billing', safe='')}/get"
    found: list[str] = []
    for name in cluster.names:
        with cluster.management(name) as management:
            answer = management.post(path, json=wanted).raise_for_status().json()
        found += [each["properties"]["message_id"] for each in answer]
    return found


def order(number: int) -> dict[str, object]:
    """Make an order; of 100, one is in CHF (retried), one in XTS (retried, then parked), one in none."""
    currency = {7: "CHF", 17: "XTS", 27: "???"}.get(number % 100, "EUR")
    line = {"article": "nut", "price": str(Decimal(1 + number % 50) / 100), "pieces": 2}
    return {
        "number": f"{number}",
        "customer": f"customer-{number % 10}",
        "currency": currency,
        "lines": [line],
    }


@pytest.mark.guarantee("application-survives-kills")
async def test_nothing_is_lost_when_a_broker_and_a_worker_are_killed(
    broken_cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster = broken_cluster
    bus = BusConfig.from_env(cluster.client_env())
    await asyncio.to_thread(declare, bus, ["orders/billing", "invoices/archive"])
    service = Service(cluster, tmp_path)
    try:
        async with App(bus, publisher=PublisherConfig(deadline_s=PUBLISH_WITHIN_S)) as shop:

            async def publish(number: int) -> None:
                message = Message.json(order(number), message_id=f"order-{number}")
                await shop.publish("orders", message)

            for first in range(0, ORDERS, SLICE):
                if first == ORDERS // 3:
                    cluster.kill(cluster.names[1])
                if first == ORDERS // 2:
                    await asyncio.to_thread(cluster.start, cluster.names[1])
                if first == 2 * ORDERS // 3:
                    service.kill_a_worker()
                await asyncio.gather(*(publish(n) for n in range(first, first + SLICE)))
        bad = {f"order-{n}" for n in range(ORDERS) if n % 100 in (17, 27)}
        good = {f"{n}" for n in range(ORDERS)} - {each.removeprefix("order-") for each in bad}
        await eventually_async(
            lambda: service.seen().keys() >= good, within_s=HANDLED_WITHIN_S, what="all invoices"
        )
        await eventually_async(
            lambda: set(parked(cluster)) >= bad, within_s=HANDLED_WITHIN_S, what="all parked"
        )
        assert service.stop() == 0
        seen = service.seen()
        assert seen.keys() == good, "and nothing else"
        assert set(parked(cluster)) == bad
        again = sum(seen.values()) - len(seen)
        print(f"{ORDERS} orders: {len(seen)} invoices, {again} came again, {len(bad)} parked")
    finally:
        service.process.kill()
        service.process.wait()
