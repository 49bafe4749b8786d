"""The monitor's pages in a browser: alive without losing the focus, by keyboard, without faults.

Against a made-up bus. Pictures of each page go to out/monitor, for people to look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from messagebus.admin import ParkedMessages
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.eventlog import EventLog
from messagebus.tools import find
from tests.support.watched import NAMES, PROXIED, MadeUp, Served
from tests.unit.services.monitor.test_actions import NAME, PASSWORD, PEOPLE, Library
from tests.unit.services.monitor.test_tracing import ID, PARKED

CHROMIUM = "/usr/bin/chromium"
PICTURES = Path(__file__).resolve().parents[2] / "out" / "monitor"
PAGES = {
    "overview": "/",
    "subscriptions": "/subscriptions",
    "subscription": "/subscriptions/payments/fraud",
    "brokers": "/brokers",
    "broker": "/brokers/mb2.example%3A5672",
    "parked": "/parked",
    "clients": "/clients",
    "topology": "/topology",
    "journal": "/journal",
    "rules": "/rules",
    "trace": "/trace",
}
WIDE, USUAL, MIDDLE, NARROW = 1_560, 1_280, 768, 390
# Elements whose content is wider than they are, so that a part of it is out of sight.
CUT = """() => [...document.querySelectorAll("main *, .top *")].filter(each => {
  const style = getComputedStyle(each);
  return style.overflowX != "visible" && style.clipPath == "none" && each.clientWidth > 1
    && each.tagName != "PRE" && each.scrollWidth > each.clientWidth + 1;
}).map(each => `${each.tagName}.${each.className} ${each.innerText.slice(0, 60)}`)"""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WITHIN_MS = 60_000
# The default of 5 s is too short for a page beside other work on one machine.
expect.set_options(timeout=WITHIN_MS)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    # Twelve names show all that there is to see; axe takes its time with each cell of the matrix.
    with Served(MonitorConfig(bus=PROXIED), MadeUp(names=NAMES[:12])).running() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A tab that keeps what its console says."""

    def __init__(self, browser: Browser, address: str, width: int = WIDE) -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": 1_000}, base_url=address
        )
        self._context.set_default_timeout(WITHIN_MS)
        self.page: Page = self._context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda fault: self.faults.append(str(fault)))
        self.page.on(
            "console", lambda told: self.faults.append(told.text) if told.type == "error" else None
        )

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()


def live(page: Page) -> None:
    """Wait for live figures: by a stream, or by polls where it did not open within 3 s of a busy machine."""
    expect(page.locator("#live")).to_have_text(re.compile(r"^(live|every 2 s), "))


def shoot(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


LOOKS = 100


def faults_of(page: Page, name: str) -> list[str]:
    """Judge a page in light on a wide screen and in dark on a narrow one; its width on both, and between.

    Nothing is cut, but for the tables of a screen of MIDDLE width, which are scrolled.
    """
    found = []
    for theme, width in (("light", WIDE), ("light", USUAL), ("light", MIDDLE), ("dark", NARROW)):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 1_000})
        for _ in range(LOOKS):  # charts are drawn anew
            if (wide := page.evaluate("document.documentElement.scrollWidth")) <= width:
                break
            page.wait_for_timeout(100)
        found += [f"{wide} wide on {width}"] if wide > width else []
        cut = page.evaluate(CUT) if width != MIDDLE else []
        found += [f"cut on {width}: {each}" for each in cut]
        shoot(page, f"{name}-{theme}-{width}")
        if width in (WIDE, NARROW):
            result = Axe().run(page, options={"runOnly": RULES})
            found += [
                f"{theme} {each['id']}: {[node['html'][:100] for node in each['nodes'][:3]]}"
                for each in result.response["violations"]
            ]
    page.set_viewport_size({"width": WIDE, "height": 1_000})
    return found


def test_no_page_has_a_fault_of_script_policy_access_or_width(
    browser: Browser, served: Served
) -> None:
    found = {}
    with Opened(browser, served.address) as tab:
        for name, address in PAGES.items():
            tab.page.goto(address)
            if name != "trace":
                live(tab.page)
            if name == "subscription":
                expect(tab.page.locator("#chart-flow canvas")).to_be_visible()
            found[name] = faults_of(tab.page, name)
        assert tab.faults == []
    assert {name: each for name, each in found.items() if each} == {}


def test_a_live_page_keeps_what_somebody_types_and_the_focus(
    browser: Browser, served: Served
) -> None:
    with Opened(browser, served.address) as tab:
        page = tab.page
        page.goto("/subscriptions")
        live(page)
        page.keyboard.press("/")
        page.keyboard.type("pay")
        row = page.locator("tr[id='source.payments%2Ffraud'] td").nth(2)
        before = row.inner_text()
        expect(row).not_to_have_text(before)
        assert page.evaluate("document.activeElement.id") == "find"
        assert page.input_value("#find") == "pay"
        page.keyboard.press("Enter")
        page.wait_for_url("**/subscriptions?q=pay")
        expect(page.locator("#sources\\.body tr")).to_have_count(3)


def test_a_theme_that_was_chosen_stays(browser: Browser, served: Served) -> None:
    with Opened(browser, served.address) as tab:
        page = tab.page
        page.goto("/")
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.goto("/brokers")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(11, 15, 20)"


def test_the_seventh_tab_of_a_browser_polls_and_is_alive(browser: Browser, served: Served) -> None:
    """A browser has six connections for one host over HTTP/1.1."""
    context = browser.new_context(base_url=served.address)
    context.set_default_timeout(WITHIN_MS)
    try:
        tabs = [context.new_page() for _ in range(7)]
        for tab in tabs:
            tab.goto("/rules")
        live(tabs[-1])
    finally:
        context.close()


SILENT_STREAM = """window.EventSource = class extends EventTarget {
  constructor() { super(); queueMicrotask(() => this.dispatchEvent(new Event("open"))); }
  close() {}
}"""


def test_after_a_sleep_of_the_host_a_page_does_not_wait_for_its_dead_stream(
    browser: Browser, served: Served
) -> None:
    with Opened(browser, served.address) as tab:
        tab.page.clock.install()
        tab.page.add_init_script(SILENT_STREAM)
        tab.page.goto("/rules")
        expect(tab.page.locator("#live")).to_have_text(re.compile("^live, "))
        tab.page.clock.fast_forward("01:00:00")
        expect(tab.page.locator("#live")).to_have_text(re.compile(r"^every 2 s, \d\.\d s ago"))


def test_a_hidden_tab_asks_for_nothing(browser: Browser, served: Served) -> None:
    with Opened(browser, served.address) as tab:
        asked: list[str] = []
        tab.page.clock.install()
        tab.page.goto("/rules")
        live(tab.page)
        tab.page.evaluate(
            "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        tab.page.on("request", lambda request: asked.append(request.url))
        tab.page.clock.run_for(10_000)
        assert asked == []
        tab.page.evaluate(
            "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"
        )
        live(tab.page)
        assert any("/stream" in each for each in asked)


def test_without_javascript_figures_filters_and_pages_are_there(
    browser: Browser, served: Served
) -> None:
    context = browser.new_context(base_url=served.address, java_script_enabled=False)
    context.set_default_timeout(WITHIN_MS)
    try:
        page = context.new_page()
        page.goto("/subscriptions?sort=name")
        page.get_by_label("Filter by name").fill("orders/")
        page.get_by_label("Filter by name").press("Enter")
        expect(page.locator("#sources\\.body tr")).to_have_count(5)
        page.goto("/subscriptions/payments/fraud?table=1")
        assert page.locator("#course\\.body tr").count() > 30
    finally:
        context.close()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    made.replaces(monkeypatch)
    monkeypatch.setattr(find, "read_parked", lambda *_, **__: ParkedMessages((PARKED,)))
    return made


def test_an_operator_logs_in_plans_runs_and_sees_the_end_without_loading_again(
    browser: Browser, library: Library, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("operators-token")
    config = MonitorConfig(
        bus=PROXIED,
        people=PEOPLE,
        state_dir=str(tmp_path),
        token_file=str(tmp_path / "token"),
    )
    log = EventLog(str(tmp_path / "events.sqlite"))
    library.goes_on.clear()
    with (
        Served(config, MadeUp(), log, minutes=0).running() as served,
        Opened(browser, served.address) as tab,
    ):
        page, found = tab.page, {}
        page.goto(f"/subscriptions/{NAME}")
        found["login"] = faults_of(page, "login")
        page.get_by_label("Name").fill("a.dmin")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/subscriptions/{NAME}")
        found["acts"] = faults_of(page, "subscription-admin")
        page.get_by_role("button", name="Redrive…").click()
        page.wait_for_url("**/plans/*")
        live(page)
        expect(page.locator("#plan\\.lines tr")).to_have_count(2)
        found["plan"] = faults_of(page, "plan")
        page.get_by_role("button", name="Redrive: 40 messages on 2 brokers").click()
        expect(page.locator("#plan\\.state")).to_contain_text("a.dmin has been running it")
        expect(page.get_by_role("button", name="Stop it")).to_be_visible()
        library.goes_on.set()
        expect(page.locator("#plan\\.state")).to_contain_text("40 messages put back")
        expect(page.get_by_role("button", name="Stop it")).to_be_hidden()
        shoot(page, "plan-done")
        page.goto(f"/trace?id={ID}")
        expect(page.get_by_text("Parked in payments/fraud on mb2")).to_be_visible()
        found["trace"] = faults_of(page, "traced")
        page.goto("/topology")
        found["topology"] = faults_of(page, "topology-admin")
        assert tab.faults == []
    assert {name: each for name, each in found.items() if each} == {}
