"""Alert rules: read and tried out by promtool, and made only of metrics that the parts really show."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from bench.processes import free_port
from messagebus import BusConfig, Consumer, Message, Publisher
from messagebus.services.agent.web.metrics import figures_of_mirror
from messagebus.telemetry.prometheus import ClientMetrics
from ops.local.cluster import LocalCluster
from ops.local.servers import choices_of
from ops.local.watching import prometheus_yml
from ops.monitoring.dashboards import BOARDS, queries
from tests.support.debian import program
from tests.support.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "ops" / "monitoring"
OURS = re.compile(r"\b(?:messagebus|haproxy)_[a-z_]+")


def promtool(*words: str) -> str:
    done = subprocess.run(
        [program("promtool", package="prometheus"), *words],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> dict[str, str]:
    """Return name -> the lines of its rule."""
    parts = (FOLDER / "alerts.yml").read_text().split("- alert: ")[1:]
    return {part.split()[0]: part for part in parts}


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "rules", "records.yml"),
    ],
    ids=" ".join,
)
def test_promtool_has_nothing_against(words: tuple[str, ...]) -> None:
    assert "SUCCESS" in promtool(*words)


def test_every_alert_is_tried_out_and_leads_to_a_section_of_the_manual() -> None:
    tried = set(re.findall(r"alertname: (\w+)", (FOLDER / "alerts_test.yml").read_text()))
    assert tried == set(alerts())
    manual = (ROOT / "docs" / "OPERATIONS.md").read_text()
    headings = re.findall(r"^##+ (.*)$", manual, re.M)
    anchors = {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
    for name, rule in alerts().items():
        page, _, anchor = re.search(r"manual: (\S+)", rule)[1].partition("#")  # type: ignore[index]
        assert (page, anchor in anchors) == ("docs/OPERATIONS.md", True), f"{name}: {anchor}"


def test_every_metric_of_a_rule_is_shown_by_a_real_part(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    named = {
        metric for rule in alerts().values() for metric in OURS.findall(rule.split("labels:")[0])
    }
    assert len(named) > 20
    elsewhere = {f"messagebus_agent_{each.name}" for each in figures_of_mirror("/dev/drbd0")}
    elsewhere.add(
        "messagebus_agent_certificate_seconds_left"
    )  # with TLS: tests/integration/test_tls.py
    with Consumer(bus, topic, subscription="audit") as consumer, Publisher(bus) as publisher:
        publisher.send_safe(topic, Message.text("x"), timeout_s=30)
        registry = CollectorRegistry()
        metrics = ClientMetrics(registry)
        metrics.watch(consumer, "consumer")
        metrics.watch(publisher, "publisher")

        def missing() -> set[str]:
            text = generate_latest(registry).decode() + _scraped(cluster)
            return {each for each in named - elsewhere if not re.search(rf"^{each}{{", text, re.M)}

        eventually(lambda: not missing(), within_s=60, what=f"{missing()} shown")


def test_an_agent_counts_what_waits_for_whom_and_since_when(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    with Consumer(bus, topic, subscription="audit"):
        pass
    with Publisher(bus) as publisher:
        broker = publisher.send_safe(topic, Message.text("x"), timeout_s=30).broker
    agent = next(node.agent for node in cluster.layout.nodes if node.broker == broker)
    queue = f'{{broker="{broker}",queue="mb.sub/{topic}/audit"}}'

    def figure(name: str) -> float:
        text = httpx.get(f"http://{agent}/metrics", trust_env=False, verify=False).text
        found = re.search(rf"^messagebus_agent_{name}{re.escape(queue)} (\S+)$", text, re.M)
        return float(found[1]) if found else -1

    eventually(lambda: figure("queue_messages") == 1, within_s=60)
    assert figure("queue_consumers") == 0
    eventually(lambda: figure("queue_oldest_age_seconds") > 0, within_s=60)
    with Consumer(bus, topic, subscription="audit") as consumer:
        delivery: Any = consumer.receive(timeout_s=30)
        consumer.ack(delivery)
        eventually(lambda: figure("queue_messages") == 0, within_s=60)
        assert figure("queue_oldest_age_seconds") == 0
        eventually(lambda: figure("queue_consumers") == 1, within_s=60)


# Only a client with a spool on the disk has its figures.
WITHOUT = {"In the disk spool"}


@contextmanager
def prometheus(cluster: LocalCluster, folder: Path, clients: int) -> Iterator[str]:
    """Run Debian's Prometheus with the settings of a local cluster, and one job more: of this process."""
    settings: dict[str, Any] = json.loads(prometheus_yml(cluster.layout))
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    target = {"targets": [f"127.0.0.1:{clients}"]}
    settings["scrape_configs"].append({"job_name": "clients", "static_configs": [target]})
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    address = f"127.0.0.1:{free_port()}"
    argv = [
        program("prometheus", package="prometheus"),
        *(f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


def asked(address: str, query: str) -> list[Any]:
    """Return the series that a query has now; none while Prometheus starts."""
    try:
        answer = httpx.get(f"{address}/api/v1/query", params={"query": query}, trust_env=False)
    except httpx.TransportError:
        return []
    told = answer.json()
    assert told["status"] == "success", f"{query}: {told}"
    return list(told["data"]["result"])


def test_every_query_of_every_dashboard_has_an_answer_while_the_bus_works(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    registry, port = CollectorRegistry(), free_port()
    metrics = ClientMetrics(registry)
    server, thread = start_http_server(port, "127.0.0.1", registry)
    name = f"{topic}/audit"
    try:
        with (
            Consumer(bus, topic, subscription="audit") as consumer,
            Publisher(bus) as publisher,
            prometheus(cluster, tmp_path, port) as address,
        ):
            metrics.watch(consumer, "consumer")
            metrics.watch(publisher, "publisher")

            def silent() -> list[str]:
                for _ in range(20):
                    publisher.send_safe(topic, b"x")
                while (delivery := consumer.receive(timeout_s=0.1)) is not None:
                    consumer.ack(delivery)
                return [
                    f"{title}: {query}"
                    for board in BOARDS
                    for title, query in queries(board, queue=name)
                    if title not in WITHOUT and not asked(address, query)
                ]

            eventually(lambda: not silent(), within_s=120, what=f"answers to {silent()}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_local_cluster_has_the_page_and_prometheus_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(program("prometheus", package="prometheus")).parent
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{folder}")
    choices = choices_of("monitor,prometheus")
    cluster = LocalCluster(tmp_path / "c", 1, network="127.118.7", choices=choices)
    try:
        cluster.up()
        urls = {part["name"]: part["url"] for part in cluster.status()["parts"] if "url" in part}

        def silent() -> list[str]:
            page = f"{urls['monitor']}api/v1/overview"
            return list(httpx.get(page, trust_env=False).json()["silent"])

        eventually(lambda: not silent(), within_s=60)  # it began before the agent
        address = urls["prometheus"].rstrip("/")
        ready = "messagebus:ready:ratio == 1"
        eventually(lambda: asked(address, ready), within_s=120)
    finally:
        cluster.down(wipe=True)


def _scraped(cluster: LocalCluster) -> str:
    layout = cluster.layout
    urls = [f"http://{node.agent}/metrics" for node in layout.nodes]
    return "".join(
        httpx.get(url, trust_env=False).text
        for url in (*urls, f"http://{layout.front.stats}/metrics")
    )
