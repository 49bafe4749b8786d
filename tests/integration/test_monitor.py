"""`messagebus monitor` beside a cluster that runs: the page has its figures, live."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import expect, sync_playwright

from messagebus import BusConfig, Publisher, declare
from messagebus.admin import count_parked, count_subscriptions
from messagebus.services.monitor import hash_password
from ops.local.cluster import LocalCluster
from tests.integration.test_monitor_browser import CHROMIUM, PICTURES, live
from tests.integration.test_parked import park
from tests.support.eventually import eventually

WITHIN_S = 60
PASSWORD = "correct horse"


@contextmanager
def monitor(cluster: LocalCluster, folder: Path, *words: str) -> Iterator[str]:
    """Run the command by the bus's ordinary settings alone; yields the address of the page."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "monitor.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "messagebus", "monitor", "--listen", listen, *words],
            env={**os.environ, **cluster.client_env()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://{listen}"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0, (folder / "monitor.log").read_text()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def test_the_page_shows_brokers_and_what_waits_without_a_consumer(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    name = f"{topic}/unread"
    declare(bus, [name])
    with monitor(cluster, tmp_path) as address, sync_playwright() as playwright:
        eventually(lambda: answers(address), within_s=WITHIN_S)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1_560, "height": 1_000})
        # The overview shows the worst ones of a bus that may have many.
        page.goto(f"{address}/subscriptions?q={topic}")
        live(page)
        row = page.locator(f"tr[id='source.{name.replace('/', '%2F')}'] td").nth(2)
        expect(row).to_have_text("0")
        with Publisher(bus) as publisher:
            for _ in range(20):
                publisher.send_safe(topic, b"x")
        expect(row).to_have_text("20")
        page.goto(address)
        brokers = page.locator("#brokers\\.body tr")
        expect(brokers).to_have_count(len(cluster.brokers))
        expect(brokers.locator(".chip.ok")).to_have_count(len(cluster.brokers))
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / "real-overview.png", full_page=True)
        browser.close()


def with_people(cluster: LocalCluster, folder: Path) -> Path:
    """Write settings with two operators and an admin, who may act."""
    (folder / "token").write_text(cluster.token.reveal())
    people = "".join(
        f'[[people]]\nname = "{name}"\npassword = "{hash_password(PASSWORD)}"\nrole = "{role}"\n'
        for name, role in (("one", "operator"), ("two", "operator"), ("admin", "admin"))
    )
    env = cluster.client_env()
    file = folder / "monitor.toml"
    file.write_text(
        f'state_dir = "state"\n[bus]\nbroker = "{env["MESSAGEBUS_BROKER"]}"\n'
        f'list_urls = ["{env["MESSAGEBUS_LIST_URL"]}"]\nuser = "bus"\n'
        f'password_file = "{env["MESSAGEBUS_PASSWORD_FILE"]}"\n'
        f'[actions]\ntoken_file = "token"\n{people}'
    )
    return file


class Operator:
    """Somebody who is logged in, and has only forms."""

    def __init__(self, address: str, name: str) -> None:
        headers = {"Sec-Fetch-Site": "same-origin"}
        self._http = httpx.Client(base_url=address, headers=headers, timeout=WITHIN_S)
        fields = {"name": name, "password": PASSWORD}
        assert self._http.post("/login", data=fields).status_code == 303

    def close(self) -> None:
        self._http.close()

    def plan(self, do: str, about: str) -> str:
        """Make a plan; returns its address."""
        answer = self._post("/plans", "/", do=do, about=about)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def page(self, address: str) -> str:
        return self._http.get(address).text

    def run(self, plan: str, typed: str = "") -> httpx.Response:
        return self._post(f"{plan}/run", plan, typed=typed, plan_token=self._field(plan))

    def ends(self, plan: str) -> str:
        """Wait until a plan has run; returns its page."""

        def ran() -> str:
            page = self.page(plan)
            return page if "ran it at" in page else ""

        return eventually(ran, within_s=WITHIN_S)

    def _post(self, path: str, page: str, **fields: str) -> httpx.Response:
        fields["form_token"] = self._field(page, "form_token")
        return self._http.post(path, data=fields)

    def _field(self, page: str, name: str = "plan_token") -> str:
        found = re.search(rf'name="{name}" value="([^"]+)"', self.page(page))
        return found[1] if found else ""


def test_operators_redrive_drain_and_purge_by_plans_and_all_of_it_is_in_the_journal(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    name = f"{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", f"mb.park/{name}", ["a1", "a2", "a3"])
    park(cluster, "mb2", f"mb.park/{name}", ["b1"])
    settings = ("--config", str(with_people(cluster, tmp_path)))
    with monitor(cluster, tmp_path, *settings) as address, ExitStack() as stack:
        eventually(lambda: answers(address), within_s=WITHIN_S)
        one, two, admin = (
            stack.enter_context(closing(Operator(address, each)))
            for each in ("one", "two", "admin")
        )
        first, second = one.plan("redrive", name), two.plan("redrive", name)
        assert "Redrive: 4 messages on 2 brokers" in one.page(first)
        assert "4 times timeout" not in one.page(first)
        assert "3 times timeout" in one.page(first)
        assert one.run(first).status_code == 303
        assert "Done:" in one.ends(first)
        assert count_parked(bus, [name]).counts == ()
        assert "one has run this plan already" in two.run(first).text
        two.run(second)
        assert "no longer as planned" in two.ends(second)
        waiting = [each for each in count_subscriptions(bus).counts if each.name == name]
        assert {each.broker: each.ready for each in waiting if each.ready} == {
            cluster.node("mb1").broker: 3,
            cluster.node("mb2").broker: 1,
        }
        drained = cluster.node("mb3").broker
        drain = one.plan("drain", drained)
        one.run(drain)
        assert "Done:" in one.ends(drain)
        back = one.plan("undrain", drained)
        one.run(back)
        assert "Done:" in one.ends(back)
        purge = admin.plan("purge", name)
        assert f"Type {name} to confirm" in admin.run(purge, typed="x").text
        admin.run(purge, typed=name)
        assert "4 messages dropped" in admin.ends(purge)
        journal = one.page("/journal?kind=action")
        assert "by one from 127.0.0.1" in journal
        assert "by admin from 127.0.0.1" in journal
