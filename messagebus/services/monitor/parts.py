"""Pages as parts with names: rendered whole for the first answer, and by their differences for live ones.

A template marks its parts by ``call part(id, tag, classes)``, and the body of a table by
``call(row) rows(id, kind, rows)``.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from messagebus.observing.totals import at_least
from messagebus.services.monitor import figures
from messagebus.services.monitor.pages.shared import broker_href, source_href
from messagebus.terminal import plural

FOLDER = Path(__file__).parent
# Renderings of one page by which a browser may have what it shows; others get all parts.
VERSIONS_KEPT = 20
VERSION_DIGITS = 16
# In place of a version that is known after the rendering.
UNKNOWN_VERSION = "version-to-come"
JSON_SEPARATORS = (",", ":")
# Functions from a value to its text, by their names in templates.
FILTERS: dict[str, Callable[..., str]] = {
    "age": figures.age,
    "age_class": figures.age_class,
    "bucket": figures.bucket,
    "roughly": figures.roughly,
    "number": figures.count,
    "rate": figures.rate,
    "size": figures.size,
    "clock": figures.clock,
    "day": figures.day,
    "plural": plural,
    # The same of a figure that may be a lower bound.
    "least_age": lambda value, is_least: at_least(value, is_least, figures.age),
    "least_number": lambda value, is_least: at_least(value, is_least, figures.count),
    "least_rate": lambda value, is_least: at_least(value, is_least, figures.rate),
    "broker_href": broker_href,
    "source_href": source_href,
}


@dataclass(frozen=True, slots=True)
class Rendering:
    """One page at one time. parts: id -> HTML. orders: id of a table's body -> ids of its rows."""

    html: str
    parts: Mapping[str, str]
    orders: Mapping[str, tuple[str, ...]]
    version: str


@dataclass(slots=True)
class _Recorder:
    """Marks of one rendering. known: one with the same parts, which are taken from it."""

    known: Rendering | None = None
    parts: dict[str, str] = field(default_factory=dict)
    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def part(self, id: str, tag: str = "div", classes: str = "", *, caller: Any) -> Markup:
        if self.known and id in self.known.parts:
            return Markup(self.known.parts[id])
        html = Markup("<{0} id='{1}' class='{2}'>{3}</{0}>").format(
            Markup(tag), id, classes, Markup(caller())
        )
        self.parts[id] = str(html)
        return html

    def rows(self, id: str, kind: str, rows: Iterable[tuple[str, Any]], *, caller: Any) -> Markup:
        """Render rows, each with its name, which is one of its kind's on a page."""
        made, order = list[Markup](), list[str]()
        if self.known and id in self.known.orders:
            made = [Markup(self.known.parts[row_id]) for row_id in self.known.orders[id]]
            rows = ()
        for name, row in rows:
            row_id = figures.row_id(kind, name)
            tone = "stale" if getattr(row, "is_stale", False) else ""
            html = Markup("<tr id='{}' class='{}'>{}</tr>").format(
                row_id, tone, Markup(caller(row))
            )
            self.parts[row_id] = str(html)
            order.append(row_id)
            made.append(html)
        self.orders[id] = tuple(order)
        return Markup("<tbody id='{}'>{}</tbody>").format(id, Markup("").join(made))


@functools.cache
def _environment(folder: Path) -> Environment:
    """Return the templates of a folder, each compiled once in a process."""
    made = Environment(
        loader=FileSystemLoader(folder / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(FILTERS)
    digests = {
        str(path.relative_to(folder / "static")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (folder / "static").rglob("*")
        if path.is_file()
    }
    made.globals["static"] = lambda name: f"/static/{name}?v={digests[name][:12]}"
    return made


class Renderer:
    """The templates, with the addresses of static files."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._environment = _environment(folder)

    def render(
        self, template: str, values: Mapping[str, Any], known: Rendering | None = None
    ) -> Rendering:
        """Render a page. Its version depends on its parts alone.

        known: a rendering of the page with the same parts, which are not rendered again then.
        """
        recorder = _Recorder(known)
        marked = {"part": recorder.part, "rows": recorder.rows, "self_values": values}
        text = self._environment.get_template(template).render(**values, **marked)
        if known is not None:
            return replace(known, html=text)
        told = json.dumps([recorder.parts, recorder.orders]).encode()
        version = hashlib.sha256(told).hexdigest()[:VERSION_DIGITS]
        return Rendering(text, recorder.parts, recorder.orders, version)


@dataclass(frozen=True, slots=True)
class Shown:
    """A rendering that somebody has, as far as differences need it: its text would be 0.5 MB.

    hashes: of its parts' texts, by id. orders: as of `Rendering`.
    """

    hashes: Mapping[str, int]
    orders: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, rendering: Rendering) -> Shown:
        """Return what is kept of a rendering."""
        return cls({id: hash(html) for id, html in rendering.parts.items()}, rendering.orders)


def encoded(rendering: Rendering, before: Shown | None, now_ms: int) -> bytes:
    """Return the parts that differ, as JSON; all of them without an earlier rendering."""
    parts = [
        [id, html]
        for id, html in rendering.parts.items()
        if before is None or before.hashes.get(id) != hash(html)
    ]
    orders = [
        [id, order]
        for id, order in rendering.orders.items()
        if before is None or before.orders.get(id) != order
    ]
    told = {"version": rendering.version, "now": now_ms, "parts": parts, "orders": orders}
    return json.dumps(told, separators=JSON_SEPARATORS).encode()


class Feed:
    """One page as all who look at it with the same rights see it; rendered once for each observation."""

    def __init__(self, make: Callable[[], Rendering]) -> None:
        self._make = make
        self._kept: OrderedDict[str, Shown] = OrderedDict()
        self._encoded: dict[str, bytes] = {}
        self._newest: Rendering | None = None
        self._at = -1

    def at(self, observation: int) -> Rendering:
        """Return the page of an observation, by its number, without its whole text."""
        if self._newest is None or observation != self._at:
            made = self._make()
            self._newest, self._at = replace(made, html=""), observation
            self.keep(made)
            self._encoded.clear()
        return self._newest

    def newest(self, observation: int) -> Rendering | None:
        """Return the page of an observation, if it is rendered."""
        return self._newest if observation == self._at else None

    def keep(self, shown: Rendering) -> None:
        """Remember a page that somebody has, to tell its differences; it is shown to nobody else."""
        self._kept[shown.version] = Shown.of(shown)
        self._kept.move_to_end(shown.version)
        while len(self._kept) > VERSIONS_KEPT:
            self._kept.popitem(last=False)

    def since(self, version: str, observation: int, now_ms: int) -> bytes:
        """Return what changed since a version; the same bytes for all who have that version."""
        newest = self.at(observation)
        if version not in self._encoded:
            self._encoded[version] = encoded(newest, self._kept.get(version), now_ms)
        return self._encoded[version]


class Feeds:
    """Feeds by page and rights; those that were used longest ago are forgotten."""

    KEPT = 100

    def __init__(self) -> None:
        self._feeds: OrderedDict[tuple[str, ...], Feed] = OrderedDict()

    def of(self, key: tuple[str, ...], make: Callable[[], Rendering]) -> Feed:
        """Return the feed of a key."""
        feed = self._feeds.pop(key, None) or Feed(make)
        self._feeds[key] = feed
        while len(self._feeds) > self.KEPT:
            self._feeds.popitem(last=False)
        return feed
