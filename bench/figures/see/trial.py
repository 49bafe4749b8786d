"""An operator who knows nothing, at the page of a bus with six faults; and the same at RabbitMQ's own page.

Chromium is driven as a person would: from the overview, by what stands there. A click is a click or a line
that is typed. Seconds are those of the pages, since a person's reading is no figure of ours. RabbitMQ's
management page is that of the same brokers: it knows one broker, so what is about all of them has to be
looked for on each.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import httpx

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_most
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.figures.see import page
from messagebus import BusConfig, Consumer, ConsumerConfig, Message, Publisher, declare
from ops.local.cluster import LocalCluster

NAME, BESIDE = "see.trial", "see.beside"
ALONE, SLOW, PARKED, STOPS = "shipments/warehouse", "payments/fraud", "orders/billing", "emails/out"
HEALTHY = ("orders/audit", "orders/crm", "users/welcome", "catalog/search")
BEHIND, CAUSE, NEEDLE = "report-nightly@batch-2", "KeyError: 'iban'", "parcel-4711-needle"
CLICKS_MAX, SECONDS_MAX, WITHIN_S = 3, 10, 30.0
PICTURES = CHECKOUT / "out" / "monitor"
# A rule of consumers that are missing on one broker waits for a minute, and that of single copies too.
RULES_S = 66.0
WATCHED_S = 30.0
SEEN_GOAL_S = 2.0


@dataclass
class Person:
    """Somebody at a page, who counts."""

    tab: Any
    clicks: int = 0

    def click(self, text: str) -> None:
        self.clicks += 1
        self.tab.get_by_role("link", name=text).first.click()

    def types(self, label: str, text: str) -> None:
        self.clicks += 1
        self.tab.get_by_label(label).first.fill(text)
        self.tab.keyboard.press("Enter")

    def reads(self, text: str) -> None:
        """Wait until a text is there. Raises BenchError when it is not."""
        found = self.tab.get_by_text(re.compile(text)).first
        try:
            found.wait_for(timeout=WITHIN_S * 1_000)
        except Exception as fault:
            said = " ".join(self.tab.inner_text("main").split())[:600]
            raise BenchError(f"{self.tab.url} does not say {text!r}: {said}") from fault


def _broker_without_a_consumer(person: Person) -> None:
    person.reads(f"{ALONE}.*has no consumer on")


def _growing_age_and_reason(person: Person) -> None:
    person.click(SLOW)
    person.reads("handlers are (slow|stuck)")


def _client_behind(person: Person) -> None:
    person.click("Clients")
    person.reads(re.escape(BEHIND))


def _single_copy(person: Person) -> None:
    person.reads("keeps its messages on one disk")


def _parked_and_cause(person: Person) -> None:
    person.click("Parked")
    person.click("Read the reasons")
    person.reads("figures: no account")


def _where_is_it(person: Person) -> None:
    person.types("Find", NEEDLE)
    person.reads("Parked in " + PARKED)


TASKS: dict[str, tuple[str, Callable[[Person], None]]] = {
    "alone": ("a broker without a consumer of a subscription", _broker_without_a_consumer),
    "slow": ("a growing age, and its reason", _growing_age_and_reason),
    "behind": ("a client that works by an older list", _client_behind),
    "copy": ("a broker with a single copy", _single_copy),
    "parked": ("a parked message, and its cause", _parked_and_cause),
    "where": ("the place of one message, by its id", _where_is_it),
}


def _figures(scene: Scene) -> Iterator[Figure]:
    make, cluster = Maker(NAME, repeat_command(NAME)), scene.cluster
    bus = BusConfig.from_env(cluster.client_env())
    with ExitStack() as stack:
        _broken(stack, cluster, bus)
        address, _ = stack.enter_context(page.monitor(cluster.client_env(), scene.folder))
        scene.say(f"six faults are set up; rules wait for {RULES_S:g} s")
        with page.tab(address) as tab:
            time.sleep(RULES_S)
            scene.say(f"an operator begins at {address}")
            for id, (what, task) in TASKS.items():
                tab.goto(address)
                person, began_s = Person(tab), time.monotonic()
                task(person)
                took_s = time.monotonic() - began_s
                tab.screenshot(path=PICTURES / f"trial-{id}.png", full_page=True)
                told = f"An operator at the overview finds {what}: clicks"
                yield make(f"{id}_clicks", told, person.clicks, "", (at_most, CLICKS_MAX))
                told = f"An operator at the overview finds {what}: until the page says it"
                yield make(f"{id}_s", told, took_s, "s", (at_most, SECONDS_MAX))


def _broken(stack: ExitStack, cluster: LocalCluster, bus: BusConfig) -> None:
    """Set up six faults, and subscriptions that are well."""
    first, last = (cluster.node(cluster.names[at]) for at in (0, -1))
    declare(bus, [ALONE, SLOW, PARKED, STOPS, *HEALTHY])
    two = stack.enter_context(list_without(cluster, last.broker))
    for name, settings in (*((each, bus) for each in HEALTHY), (ALONE, two)):
        stack.enter_context(_consuming(settings, name))
    to_last = replace(bus, broker=last.broker)
    with Publisher(to_last) as publisher:
        publisher.send_safe(ALONE.partition("/")[0], b"x", timeout_s=60)
    stack.enter_context(_consuming(bus, SLOW, hold=True))
    for broker in cluster.brokers:
        stack.enter_context(_publishing(replace(bus, broker=broker), SLOW.partition("/")[0]))
    stack.enter_context(_old_client(first.agent, bus))
    with Publisher(bus) as publisher:
        body = Message(body=b"x", message_id=NEEDLE)
        publisher.send_safe(PARKED.partition("/")[0], body, timeout_s=60)
    topic, _, subscription = PARKED.partition("/")
    with Consumer(bus, topic, subscription=subscription) as consumer:
        delivery: Any = consumer.receive(timeout_s=60)
        consumer.park(delivery, reason="figures: no account")
        time.sleep(1)
    # DRBD does not know this device here: what is on that broker has no other copy.
    file = last.dir / "agent.toml"
    file.write_text(file.read_text() + 'mirror_device = "/dev/drbd99"\n')
    name = cluster.names[-1]
    cluster.stop(name, agent=True)
    cluster.start(name, agent=True)


@contextmanager
def _consuming(bus: BusConfig, name: str, *, hold: bool = False) -> Iterator[None]:
    """Consume meanwhile; hold: answer nothing."""
    topic, _, subscription = name.partition("/")
    ending = threading.Event()

    def work() -> None:
        kept = []
        with Consumer(
            bus, topic, subscription=subscription, config=ConsumerConfig(prefetch=10)
        ) as consumer:
            while not ending.is_set():
                if delivery := consumer.receive(timeout_s=0.5):
                    kept.append(delivery) if hold else consumer.ack(delivery)

    yield from _beside_us(work, ending)


@contextmanager
def _publishing(bus: BusConfig, topic: str) -> Iterator[None]:
    ending = threading.Event()

    def work() -> None:
        with Publisher(bus) as publisher:
            while not ending.wait(0.2):
                publisher.send_safe(topic, b"x", timeout_s=60)

    yield from _beside_us(work, ending)


@contextmanager
def _old_client(agent: str, bus: BusConfig) -> Iterator[None]:
    """Ask for the list as a client that works by an older one."""
    ending = threading.Event()

    def work() -> None:
        query = {
            "client": BEHIND,
            "subscription": "orders/audit",
            "applied": "0",
            "generation": "0",
        }
        with httpx.Client(trust_env=False) as http:
            while not ending.wait(2.0):
                with contextlib.suppress(httpx.HTTPError):
                    http.get(f"http://{agent}/consumer-list", params=query)

    yield from _beside_us(work, ending)


def _beside_us(work: Callable[[], None], ending: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextmanager
def list_without(cluster: LocalCluster, broker: str) -> Iterator[BusConfig]:
    """Serve the list without a broker, and pass all else on; gives the settings of a client that reads it."""
    bus = BusConfig.from_env(cluster.client_env())
    real = bus.list_urls[0].removesuffix("/consumer-list")

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(b"")

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _pass_on(self, body: bytes) -> None:
            kept = {k: v for k, v in self.headers.items() if k.lower() == "authorization"}
            query = re.sub("wait_s=[^&]*", "wait_s=1", self.path)
            answer = httpx.request(
                self.command, real + query, content=body, headers=kept, trust_env=False
            )
            lines = answer.text.splitlines(keepends=True)
            text = "".join(line for line in lines if not line.startswith(broker)).encode()
            self.send_response_only(answer.status_code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(text)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield replace(bus, list_urls=(f"http://127.0.0.1:{server.server_port}/consumer-list",))
        finally:
            server.shutdown()
            thread.join()


# Beside RabbitMQ's page.


def _beside(scene: Scene) -> Iterator[Figure]:
    bus = BusConfig.from_env(scene.cluster.client_env())
    declare(bus, [SLOW, STOPS])
    with page.monitor(scene.cluster.client_env(), scene.folder) as (address, _):
        yield from _compared(scene, bus, address)


def _compared(scene: Scene, bus: BusConfig, address: str) -> Iterator[Figure]:
    make, cluster = Maker(BESIDE, repeat_command(BESIDE)), scene.cluster
    consumers = f"tr[id='source.{quote(STOPS, safe='')}'] td:nth-child(7)"
    with page.tab(f"{address}/subscriptions?q={STOPS}") as tab:
        ours = _stopped_seen(bus, tab, consumers, "^[1-9]", "^0")
    what = "A consumer has stopped until an open page says so"
    yield make("stopped_s", f"{what}: ours", ours, "s", (at_most, SEEN_GOAL_S))
    queue = quote(f"mb.sub/{STOPS}", safe="")
    with page.tab("about:blank") as tab:
        _log_in(tab, cluster, cluster.names[0], f"#/queues/%2F/{queue}")
        theirs = _stopped_seen(bus, tab, "#main", r"Consumers \([1-9]", r"Consumers \(0")
    told = f"{what}: RabbitMQ's, at that queue of one broker"
    yield make("stopped_rabbitmq_s", told, theirs, "s")
    with page.tab(address) as tab:
        person = Person(tab)
        person.reads(SLOW)
    what = "From the first page to the oldest message of a subscription over all brokers: clicks"
    yield make("oldest_clicks", f"{what}, ours", person.clicks, "", (at_most, 1))
    clicks = sum(_clicks_at(cluster, name) for name in cluster.names)
    told = f"{what}, RabbitMQ's, to what waits on each of {len(cluster.names)}; it tells no age"
    yield make("oldest_rabbitmq_clicks", told, clicks, "")
    pids = [process.pid for name in cluster.names if (process := cluster.process_of(name))]
    rest = sum(page.cpu_percents(pids, scene.part(round(WATCHED_S), 5)))
    with page.tab(f"{address}/subscriptions"):
        watched = sum(page.cpu_percents(pids, scene.part(round(WATCHED_S), 5)))
    with ExitStack() as stack:
        browser = stack.enter_context(page.tab("about:blank")).context.browser
        for name in cluster.names:
            _log_in(browser.new_page(), cluster, name, "#/queues")
        theirs = sum(page.cpu_percents(pids, scene.part(round(WATCHED_S), 5)))
    what = f"CPU of all {len(pids)} brokers while somebody watches all queues, of one core"
    yield make("watch_percent", f"{what}, more than before: ours", watched - rest, "%")
    told = f"{what}, more than before: RabbitMQ's, a tab for each broker"
    yield make("watch_rabbitmq_percent", told, theirs - rest, "%")


def _stopped_seen(bus: BusConfig, tab: Any, at: str, present: str, absent: str) -> float:
    """Return the seconds from the end of a consumer's links until an open page says so."""
    with _consuming(bus, STOPS):
        page.until_told(tab, at, present, lambda: None)
    return page.until_told(tab, at, absent, lambda: None)


def _log_in(tab: Any, cluster: LocalCluster, name: str, to: str) -> None:
    tab.goto(f"http://{cluster.node(name).management}/{to}")
    tab.fill("input[name=username]", "admin")
    tab.fill("input[name=password]", cluster.admin_password.reveal())
    tab.click("input[type=submit]")
    tab.wait_for_selector("#main h1")


def _clicks_at(cluster: LocalCluster, name: str) -> int:
    """Return the clicks on one broker's page from its first one to what waits in a queue."""
    with page.tab("about:blank") as tab:
        _log_in(tab, cluster, name, "")
        tab.get_by_role("link", name=re.compile("^Queues")).first.click()
        tab.get_by_role("link", name=f"mb.sub/{SLOW}").first.click()
        tab.get_by_text("Ready").first.wait_for()
    # Name and password, then two links.
    return 3


GROUPS = tuple(
    Group(name, 3, BEHIND_HAPROXY, measure)
    for name, measure in ((NAME, _figures), (BESIDE, _beside))
)
