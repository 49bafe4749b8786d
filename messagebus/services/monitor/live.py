"""The live pages by their addresses: the template, the values and the names that each shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from messagebus.observing.rules import RULES
from messagebus.services.monitor.board import Board
from messagebus.services.monitor.eventlog import Event
from messagebus.services.monitor.pages import brokers, matrix, others, overview, planned, sources
from messagebus.services.monitor.pages.shared import ROWS_A_PAGE, Settings, Values, labels
from messagebus.services.monitor.people import Principal, Role

if TYPE_CHECKING:
    from messagebus.services.monitor.web import Monitor

QUERY_CHARS_MAX = 2_000
QUERY_FIELDS_MAX = 20
EVENTS_SHOWN, EVENTS_OF_ONE = 300, 20
# Beginning of an address -> its page, and the beginning of the name that follows.
NAMED = {
    "/subscriptions/": ("/subscriptions/{name}", ""),
    "/queues/": ("/subscriptions/{name}", "queue:"),
    "/brokers/": ("/brokers/{name}", ""),
}


@dataclass(frozen=True, slots=True)
class Page:
    """A live page. here: its address in the bar. names: what is counted anew while somebody looks."""

    template: str
    here: str
    values: Callable[[PageRequest], Values | None]
    names: Callable[[PageRequest], tuple[str, ...]] = lambda asked: ()
    all_clients: bool = False


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One address of a live page, as somebody asks for it; its values are those of the newest observation.

    name: the broker, subscription, queue or plan that it is about; "" for the whole bus. text: its query.
    """

    monitor: Monitor
    page: Page
    name: str
    query: dict[str, str]
    text: str
    who: Principal

    @property
    def board(self) -> Board:
        return self.monitor.watch.board

    @property
    def settings(self) -> Settings:
        return settings(self.monitor)

    def values(self) -> Values | None:
        """Return the values of its template; None when the bus has nothing of that name."""
        return self.page.values(self)

    def names(self) -> tuple[str, ...]:
        return self.page.names(self)

    def events(self, count_max: int, *, kind: str = "", about: str = "") -> list[Event]:
        return self.monitor.watch.events.recent(count_max, kind=kind, about=about)

    def sources(self, count_max: int) -> tuple[str, ...]:
        """Return the subscriptions and queues that its query chooses, in its order."""
        chosen = matrix.chosen(self.board, self.query)
        return tuple(each.name for each in chosen[:count_max])


def _overview(wanted: PageRequest) -> Values:
    return overview.overview(
        wanted.board,
        wanted.query,
        wanted.settings,
        events=wanted.events(overview.OVERVIEW_EVENTS),
        playbooks=wanted.monitor.playbooks.runs(),
    )


def _subscriptions(wanted: PageRequest) -> Values:
    values = sources.subscriptions(wanted.board, wanted.query, wanted.settings)
    return {**values, "export": f"?{wanted.text}"}


def _subscription(wanted: PageRequest) -> Values | None:
    values = sources.subscription(
        wanted.board,
        wanted.name,
        wanted.query,
        wanted.settings,
        events=wanted.events(EVENTS_OF_ONE, about=wanted.name),
    )
    is_read = wanted.query.get("parked")
    reasons = wanted.monitor.parked.known(wanted.name, wanted.who) if is_read else None
    return values and {**values, "reasons": reasons}


def _broker(wanted: PageRequest) -> Values | None:
    events = wanted.events(EVENTS_OF_ONE, about=wanted.name)
    return brokers.broker(wanted.board, wanted.name, wanted.query, wanted.settings, events=events)


def _topology(wanted: PageRequest) -> Values:
    events = wanted.events(EVENTS_OF_ONE, kind="list")
    return others.topology(wanted.board, wanted.query, wanted.settings, events=events)


def _journal(wanted: PageRequest) -> Values:
    kind, about = wanted.query.get("kind", ""), wanted.query.get("about", "")
    return others.journal(
        wanted.board,
        wanted.query,
        wanted.settings,
        events=wanted.events(EVENTS_SHOWN, kind=kind, about=about),
        note=wanted.monitor.watch.events.fault,
        playbooks=wanted.monitor.playbooks.runs(),
    )


def _plan(wanted: PageRequest) -> Values | None:
    found = wanted.monitor.actions.find(wanted.name)
    return planned.plan(wanted.board, found, wanted.settings) if found else None


OVERVIEW = Page("overview.html", "/", _overview, lambda a: a.sources(overview.OVERVIEW_ROWS))
PLAN = Page("plan.html", "", _plan)
PAGES = {
    "/subscriptions": Page(
        "subscriptions.html", "/subscriptions", _subscriptions, lambda a: a.sources(ROWS_A_PAGE)
    ),
    "/subscriptions/{name}": Page(
        "subscription.html", "/subscriptions", _subscription, lambda a: (a.name,)
    ),
    "/brokers": Page(
        "brokers.html", "/brokers", lambda a: brokers.brokers(a.board, a.query, a.settings)
    ),
    "/brokers/{name}": Page("broker.html", "/brokers", _broker),
    "/parked": Page(
        "parked.html", "/parked", lambda a: others.parked(a.board, a.query, a.settings)
    ),
    "/clients": Page(
        *("clients.html", "/clients", lambda a: others.clients(a.board, a.query, a.settings)),
        all_clients=True,
    ),
    "/topology": Page("topology.html", "/brokers", _topology),
    "/journal": Page("journal.html", "/journal", _journal),
    "/rules": Page("rules.html", "/", lambda a: others.rules(a.board, a.query, a.settings, RULES)),
}


def page_request(monitor: Monitor, of: str, who: Principal) -> PageRequest:
    """Return the live page of an address with its query; the overview for any other address."""
    try:
        parts = urlsplit(of)
        is_long = len(parts.query) >= QUERY_CHARS_MAX
        query = {} if is_long else dict(parse_qsl(parts.query, max_num_fields=QUERY_FIELDS_MAX))
    except ValueError:  # no address, or too many fields
        return page_request(monitor, "/", who)
    if parts.path.startswith("/plans/") and who.role >= Role.OPERATOR:
        page, name = PLAN, parts.path.removeprefix("/plans/")
    else:
        path, name = named(parts.path)
        page = PAGES.get(path, OVERVIEW)
    return PageRequest(monitor, page, name, query, parts.query, who)


def named(path: str) -> tuple[str, str]:
    """Return the page of a path, and the name of the source or broker that it is about, "" for none."""
    for prefix, (page, begin) in NAMED.items():
        if path.startswith(prefix) and len(path) > len(prefix):
            return page, begin + unquote(path.removeprefix(prefix))
    return path, ""


def settings(monitor: Monitor) -> Settings:
    """Return what pages show of the installation."""
    bus = monitor.watch.board.view.bus
    names = [seen.broker for seen in bus.brokers]
    watched = sum(not rule.unwatched(bus) for rule in RULES)
    return Settings(monitor.config.manual, watched, labels(names) if names else {})
