"""Sums and words of pages: a silent broker is in no sum, and is never 0."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.observing.changes import ChangeKind
from messagebus.observing.rules import RULES, Raised
from messagebus.observing.snapshot import NO_LINK, Bus, Consumer, ObservedBroker
from messagebus.services.monitor import figures, live
from messagebus.services.monitor.api import source_row
from messagebus.services.monitor.board import Board, View, board
from messagebus.services.monitor.concluding import Concluding
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.eventlog import ACTION, EventLog
from messagebus.services.monitor.history import History
from messagebus.services.monitor.pages.brokers import broker, brokers
from messagebus.services.monitor.pages.others import (
    JOURNAL_KINDS,
    clients,
    journal,
    parked,
    topology,
)
from messagebus.services.monitor.pages.overview import overview
from messagebus.services.monitor.pages.shared import (
    Settings,
    Values,
    attention,
    chrome,
    heads,
    labels,
    missing_note,
)
from messagebus.services.monitor.pages.sources import subscription, subscriptions
from messagebus.services.monitor.parts import Renderer
from messagebus.services.monitor.people import NOBODY, Principal, Role
from messagebus.services.monitor.plans import KINDS
from messagebus.services.monitor.watch import Watch
from messagebus.services.monitor.web import Monitor
from tests.support.observed import bus as bus_of
from tests.support.observed import row, seen
from tests.support.watched import ALONE, PROXIED, SLOW, MadeUp

SETTINGS = Settings(labels=labels([f"mb{n}.example:5672" for n in range(1, 9)]))


def board_of(bus: Bus) -> Board:
    return board(View(bus=bus, now_ms=bus.at_ms, history=History()))


def parts_of(template: str, made: Board, values: Values | None) -> dict[str, str]:
    """Return the parts of a page as HTML, by their ids."""
    assert values is not None
    common = {"kinds": KINDS, "actions_off": "", "is_live": True, "who": NOBODY}
    return dict(Renderer().render(template, {**chrome(made, SETTINGS), **values, **common}).parts)


def test_the_journal_can_be_restricted_to_each_kind_of_event() -> None:
    own = {"rule", ACTION, "look"}
    assert JOURNAL_KINDS.keys() == {"", *get_args(ChangeKind), *own}
    made = journal(board_of(bus_of(seen("mb1"))), {"kind": "consumers"}, SETTINGS)
    assert [each.text for each in made["views"] if each.is_chosen] == ["Consumers"]


def rows_of(template: str, made: Board, values: Values | None) -> dict[str, dict[str, str]]:
    """Return the rows of a page's tables as text, by their ids and their columns; the first is ""."""
    return {
        id: {
            title: unescape(re.sub("<[^>]*>", "", text)).strip()
            for title, text in re.findall(
                r'<td(?: class="[^"]*")?(?: data-l="([^"]*)")?(?: class="[^"]*")?>(.*?)</td>', html
            )
        }
        for id, html in parts_of(template, made, values).items()
        if html.startswith("<tr")
    }


def cells_of(html: str) -> list[str]:
    """Return the classes of a row's cells of brokers."""
    return re.findall(r'<i class="([^"]*)" title', html)


def test_a_silent_broker_is_hatched_and_left_out_of_every_sum() -> None:
    bus = MadeUp().bus()
    made = board_of(bus)
    without = board_of(replace(bus, brokers=tuple(b for b in bus.brokers if not b.fault)))
    assert made.waiting == without.waiting
    assert made.parked == without.parked
    source = made.sources[SLOW]
    assert [place.state for place in source.places].count("silent") == 1
    assert source.sum.ready == without.sources[SLOW].sum.ready
    values = overview(made, {}, SETTINGS)
    parts, rows = parts_of("overview.html", made, values), rows_of("overview.html", made, values)
    assert rows["broker.mb8.example%3A5672"]["Waiting"] == "?"
    assert 'chip unknown">agent silent' in parts["broker.mb8.example%3A5672"]
    assert {cells_of(parts[each])[7] for each in rows if each.startswith("source.")} == {"silent"}
    assert missing_note(made, SETTINGS) == "on 7 of 8 brokers, without mb8"


@given(silent=st.sets(st.integers(0, 7)))
def test_no_sum_depends_on_what_a_silent_broker_said_last(silent: set[int]) -> None:
    bus = MadeUp(silent=False).bus()
    hushed = tuple(
        replace(seen, fault="no answer") if i in silent else seen
        for i, seen in enumerate(bus.brokers)
    )
    forgotten = tuple(replace(seen, last=None) if seen.fault else seen for seen in hushed)
    made = board_of(replace(bus, brokers=hushed))
    other = board_of(replace(bus, brokers=forgotten))
    assert (made.waiting, made.parked) == (other.waiting, other.parked)
    for name, source in other.sources.items():
        assert source.sum.ready == made.sources[name].sum.ready
    if len(silent) == 8:
        assert not other.sources
        assert all(each.waiting is None for each in made.brokers.values())


def test_a_broker_without_a_consumer_is_named_where_others_have_one() -> None:
    made = board_of(MadeUp().bus())
    assert made.sources[ALONE].lacking == ("mb5.example:5672",)
    parts = parts_of("overview.html", made, overview(made, {}, SETTINGS))
    first, second, *_ = [id for id, html in parts.items() if id[:7] == "source." and "<tr" in html]
    assert first == "source.payments%2Ffraud"  # that one has more messages
    assert second == "source.shipments%2Fwarehouse"
    assert "none" in cells_of(parts[second])[4]
    assert 'no consumer on mb5; mb8 did not answer"' in parts[second]


def test_a_client_of_a_subscription_is_named_where_agents_tell_no_more_of_it() -> None:
    made = board_of(MadeUp().bus())
    rows = rows_of("subscription.html", made, subscription(made, "orders/audit", {}, SETTINGS))
    assert [list(rows[f"client.report-nightly%40batch-{n}"].values()) for n in (2, 3)] == [
        [f"report-nightly@batch-{n}", "56", "?", "?"] for n in (2, 3)
    ]


def test_a_client_is_told_with_its_brokers_and_what_it_owes_of_its_prefetch() -> None:
    made = MadeUp().bus()
    names = [seen.broker for seen in made.brokers if seen.answer]

    def with_consumer(seen: ObservedBroker) -> ObservedBroker:
        if seen.broker not in names[:2] or seen.last is None:
            return seen
        at = {"peer": "p", "prefetch": 100, "owed": 90, "active": True}
        (first, *_) = (c for c in made.brokers[0].last.clients if c.subscription)  # type: ignore[union-attr]
        here = Consumer(name=first.subscription, client=first.id, **at)  # type: ignore[arg-type]
        return replace(seen, last=replace(seen.last, consumers=(here,)))

    bus = replace(made, brokers=tuple(map(with_consumer, made.brokers)))
    shown = board_of(bus)
    rows = rows_of("clients.html", shown, clients(shown, {}, SETTINGS)).values()
    assert [(row["Brokers"], row["Unacked"]) for row in rows if row["Brokers"] != "?"] == [
        (f"2 of {len(names)}", "180 of 200")
    ]


def test_what_is_about_the_list_leads_to_the_page_that_names_who() -> None:
    made = board_of(MadeUp().bus())
    rule = next(each for each in RULES if each.name == "ClientBehind")
    said = "1 client uses a list older"
    (line,) = attention(made, SETTINGS, [Raised(rule=rule, about="list", text=said, since_ms=0)])
    assert (line.before, line.subject) == (said, "")
    assert line.href == "/clients?behind=1"


def test_all_brokers_silent_leaves_the_last_names_and_no_figure() -> None:
    bus = MadeUp().bus()
    hushed = tuple(replace(seen, fault="no answer") for seen in bus.brokers)
    made = board_of(replace(bus, brokers=hushed))
    rows = rows_of("overview.html", made, overview(made, {}, SETTINGS))
    row = next(each for id, each in rows.items() if id.startswith("source."))
    assert (row["Waiting"], row["Consumers"], row["In/s"]) == ("?", "?", "?")
    assert subscription(made, SLOW, {}, SETTINGS) is not None


DOWN: dict[str, dict[str, Any]] = {
    "its agent is silent": {"fault": "no answer within 1.5 s"},
    "its agent has no link to it": {
        **{"linked": False, "gate": False, "verdict": "down", "reason": NO_LINK}
    },
    "its agent cannot check logins any more": {"fault": NO_LINK, "is_refused_for_broker": True},
}
NAME = "orders/billing"
MB1, MB2, MB3 = (f"mb{n}.example:5672" for n in (1, 2, 3))


def one_down(how: str, *, elsewhere: int = 0) -> Bus:
    """Return three brokers of which one is down with 900 messages on it; elsewhere: on each other one."""
    rows = [
        row(NAME, ready=elsewhere, consumers=bool(elsewhere), oldest_ms=70_000 * bool(elsewhere))
    ]
    rows += [row(NAME, "park")]
    more: dict[str, Any] = {**DOWN[how]}
    is_refused = bool(more.pop("is_refused_for_broker", False))
    down = seen(MB3, row(NAME, ready=900, oldest_ms=540_000), **more)
    return bus_of(
        seen(MB1, *rows), seen(MB2, *rows), replace(down, is_refused_for_broker=is_refused)
    )


def figure_of(tile: str) -> str:
    (found,) = re.findall(r'<div class="v[^"]*">(.*?)</div>', tile)
    return unescape(re.sub("<[^>]*>", "", found)).strip()


@pytest.mark.parametrize("how", DOWN)
def test_what_is_not_known_is_a_question_in_tiles_rows_and_exports_and_never_0(how: str) -> None:
    """Two brokers are empty; what the third holds is not known, so no sum is 0 and nothing is well."""
    made = board_of(one_down(how))
    pages = {
        "overview.html": overview(made, {}, SETTINGS),
        "subscription.html": subscription(made, NAME, {}, SETTINGS),
        "parked.html": parked(made, {}, SETTINGS),
    }
    for template, values in pages.items():
        parts = parts_of(template, made, values)
        text = unescape(" ".join(parts.values()))
        assert "no message waits" not in text
        assert "no message is parked" not in text
        assert "No message is parked." not in text
        assert "All clear" not in text
        tiles = {id: figure_of(html) for id, html in parts.items() if id.startswith("tile.")}
        tiles.pop("tile.coverage", None)
        assert set(tiles.values()) <= {"?", "?/s"}, tiles
    rows = rows_of("overview.html", made, pages["overview.html"])
    source = rows["source.orders%2Fbilling"]
    assert {source[each] for each in ("Oldest", "Waiting", "In/s", "Out/s", "Parked")} == {"?"}
    assert source["Consumers"] == "?"
    assert rows["broker.mb3.example%3A5672"]["Waiting"] == "?"
    assert "without mb3" in missing_note(made, SETTINGS)
    exported = source_row(made.sources[NAME])
    assert 0 not in [exported[each] for each in exported if each != "brokers_answering"]


@pytest.mark.parametrize("how", DOWN)
def test_a_sum_that_lacks_a_broker_is_shown_as_a_lower_bound(how: str) -> None:
    made = board_of(one_down(how, elsewhere=6))
    rows = rows_of("overview.html", made, overview(made, {}, SETTINGS))
    source = rows["source.orders%2Fbilling"]
    assert (source["Oldest"], source["Waiting"]) == ("≥ 1 min 10 s", "≥ 12")
    assert source["Consumers"] == "≥ 2"
    tiles = parts_of("overview.html", made, overview(made, {}, SETTINGS))
    assert "≥ 12" in tiles["tile.waiting"]
    assert "≥\N{NO-BREAK SPACE}1" in tiles["tile.oldest"]


@pytest.mark.parametrize("how", DOWN)
def test_coverage_counts_the_brokers_that_answer_and_warns_of_those_that_do_not(how: str) -> None:
    made = board_of(one_down(how, elsewhere=6))
    (tile,) = [each for each in overview(made, {}, SETTINGS)["tiles"] if each.key == "Coverage"]
    assert tile.parts == ((f"{len(made.sources)} of {len(made.sources)}", "names"),)
    assert (tile.note, tile.tone) == ("on 2 brokers of 3; 1 does not answer", "warn")
    whole = replace(one_down(how, elsewhere=6), brokers=one_down(how, elsewhere=6).brokers[:2])
    made = board_of(whole)
    (tile,) = [each for each in overview(made, {}, SETTINGS)["tiles"] if each.key == "Coverage"]
    assert (tile.note, tile.tone) == ("on every broker", "")


def test_an_age_that_is_a_lower_bound_says_so_also_where_every_broker_answers() -> None:
    before = row(NAME, ready=4, consumers=1, oldest_ms=70_000, oldest_is_least=True)
    made = board_of(bus_of(seen(MB1, before), seen(MB2, row(NAME, consumers=1))))
    rows = rows_of("overview.html", made, overview(made, {}, SETTINGS))
    assert rows["source.orders%2Fbilling"]["Oldest"] == "≥ 1 min 10 s"
    assert rows["source.orders%2Fbilling"]["Waiting"] == "4"
    assert rows["broker.mb1.example%3A5672"]["Oldest"] == "≥ 1 min 10 s"
    unknown = board_of(bus_of(seen(MB1, row(NAME, ready=4, consumers=1))))
    rows = rows_of("overview.html", unknown, overview(unknown, {}, SETTINGS))
    assert rows["source.orders%2Fbilling"]["Oldest"] == "?"
    assert rows["broker.mb1.example%3A5672"]["Oldest"] == "?"


@pytest.mark.parametrize("how", DOWN)
async def test_a_course_has_a_gap_where_a_broker_may_hold_what_the_others_do_not(how: str) -> None:
    found = one_down(how)

    class Once(MadeUp):
        def bus(self) -> Bus:
            return found

    watch = Watch(Once(), EventLog())
    await watch.once()
    at_s = watch.board.view.now_ms / 1_000
    for name in (f"source:{NAME}", "bus:"):
        series = watch.history.of(name)
        assert series
        assert {series.read(figure, at_s, 5).values[-1] for figure in range(4)} == {None}


@pytest.mark.parametrize("how", DOWN)
def test_a_silent_agent_and_a_broker_that_is_down_are_two_things_with_two_first_steps(
    how: str,
) -> None:
    bus, concluding = one_down(how), Concluding()
    for later_s in range(0, 300, 10):
        view, _ = concluding.view(replace(bus, at_ms=bus.at_ms + later_s * 1_000), History(), "")
    (only,) = [each for each in view.raised if MB3 in each.about]
    html = parts_of("brokers.html", board(view), brokers(board(view), {}, SETTINGS))
    chip = html["broker.mb3.example%3A5672"]
    if how == "its agent is silent":
        assert only.rule.name == "AgentDown"
        assert "systemctl restart messagebus-agent" in only.rule.first
        assert 'chip unknown">agent silent' in chip
        assert "Agents that do not answer" in html["faults"]
    else:
        assert only.rule.name == "BrokerAway"
        assert "messagebus-agent" not in only.rule.first
        assert 'chip bad">broker does not answer' in chip
        assert "Agents that do not answer" not in html["faults"]


@pytest.mark.parametrize("how", DOWN)
def test_the_corner_is_about_the_page_alone(how: str) -> None:
    made = board_of(one_down(how))
    parts = parts_of("broker.html", made, broker(made, MB3, {}, SETTINGS))
    assert 'data-fault=""' in parts["pulse"]


@pytest.mark.parametrize("how", DOWN)
def test_the_page_of_a_broker_that_is_down_does_not_say_what_it_said_before(how: str) -> None:
    made = board_of(one_down(how))
    values = broker(made, MB3, {}, SETTINGS)
    assert values
    facts = dict(values["facts"])
    assert facts["Verdict"] == ("?" if how == "its agent is silent" else f"down: {NO_LINK}")
    assert facts["Gate"] != "open"
    assert ("Last answer" in facts) == (how != "its agent has no link to it")


async def test_no_page_has_a_value_of_the_bar_under_another_meaning() -> None:
    watch = Watch(MadeUp(), EventLog())
    await watch.once()
    monitor = Monitor(MonitorConfig(bus=PROXIED), watch)
    common = {
        *chrome(watch.board, SETTINGS),
        "who",
        "nav",
        "here",
        "kinds",
        "theme",
        "of",
        "version",
    }
    addresses = [*live.PAGES, "/", "/subscriptions/orders/billing", "/brokers/mb1.example%3A5672"]
    for address in addresses:
        asked = live.page_request(monitor, address, Principal("", Role.VIEWER))
        assert common.isdisjoint(asked.values() or {}), address


def test_a_page_with_trouble_is_not_called_clear_before_a_rule_holds() -> None:
    old = row(NAME, ready=4, consumers=1, oldest_ms=323_000)
    made = board_of(bus_of(seen(MB1, old)))
    needs = parts_of("overview.html", made, overview(made, {}, SETTINGS))["needs"]
    assert "All clear" not in needs
    assert "1 name with problems" in needs
    made = board_of(bus_of(seen(MB1, row(NAME, consumers=1))))
    assert "All clear" in parts_of("overview.html", made, overview(made, {}, SETTINGS))["needs"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["mb1.x:5672", "mb2.x:5672"], ["mb1", "mb2"]),
        (["127.0.0.11:5672", "127.0.0.12:5672"], ["127.0.0.11", "127.0.0.12"]),
        (["a.x:1", "a.y:1"], ["a.x", "a.y"]),
        (["a:1", "a:2"], ["a:1", "a:2"]),
        (["[::1]:1", "[::2]:1"], ["[::1]", "[::2]"]),
    ],
)
def test_short_names_are_still_different(names: list[str], short: list[str]) -> None:
    assert list(labels(names).values()) == short


@given(st.lists(st.text(min_size=1, max_size=20), max_size=6, unique=True))
def test_heads_of_different_names_are_different(names: list[str]) -> None:
    assert len(set(heads(names))) == len(names)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0, "\N{EN DASH}"), (0.42, "0.4 s"), (59.6, "1 min 0 s"), (7_860, "2 h 11 min")],
)
def test_ages_are_told_in_two_units(seconds: float | None, text: str) -> None:
    assert figures.age(seconds) == text


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=60))
def test_a_curve_stays_within_its_picture_and_has_gaps(values: list[float | None]) -> None:
    spark = figures.spark(values)
    known = [value for value in values if value is not None]
    assert bool(spark.gaps) == (len(known) < max(2, len(values)))
    runs = spark.line.split("M")[1:]
    points = [point.split() for run in runs for point in run.split("L")]
    assert len(points) == len(known)
    assert all(0 <= float(x) <= 84.1 and 0 <= float(y) <= 20 for x, y in points)


@pytest.mark.parametrize(
    ("template", "page"),
    [
        ("overview.html", overview),
        ("subscriptions.html", subscriptions),
        ("brokers.html", brokers),
        ("clients.html", clients),
        ("topology.html", topology),
    ],
)
def test_a_page_without_a_list_shows_no_count_but_says_that_nothing_is_known(
    template: str, page: Callable[[Board, dict[str, str], Settings], Values]
) -> None:
    made = board_of(bus_of())
    parts = parts_of(template, made, page(made, {}, SETTINGS))
    text = " ".join(unescape(re.sub("<[^>]*>", " ", html)) for html in parts.values())
    assert "no broker is known" in text
    # The only count is that of the rules.
    assert re.findall(r"\b\d+\b(?! rules)", text) == []
    for words in ("no message waits", "no message is parked", "on every broker", "All clear"):
        assert words not in text


@pytest.mark.parametrize(
    ("template", "page"),
    [("overview.html", overview), ("subscriptions.html", subscriptions), ("brokers.html", brokers)],
)
def test_a_page_whose_parts_are_known_is_the_same_without_rendering_them_again(
    template: str, page: Callable[[Board, dict[str, str], Settings], Values]
) -> None:
    made = board_of(MadeUp().bus())
    common = {"kinds": KINDS, "actions_off": "", "is_live": True, "who": NOBODY}
    values = {**chrome(made, SETTINGS), **page(made, {}, SETTINGS), **common}
    known = Renderer().render(template, values)
    again = Renderer().render(template, values, known)
    assert again == known
    other = {**known.parts, next(iter(known.parts)): "<i>taken from what is known</i>"}
    assert (
        "taken from what is known"
        in Renderer().render(template, values, replace(known, parts=other)).html
    )
