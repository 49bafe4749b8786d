"""Conclusions from one observation after the other: rates, what needs attention, what happened.

It keeps some earlier observations; all is decided by `messagebus.observing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from messagebus.observing.changes import changes
from messagebus.observing.rates import broker_rates, row_rates
from messagebus.observing.rules import Attention, Raised
from messagebus.observing.snapshot import Bus
from messagebus.observing.totals import uncounted
from messagebus.services.monitor.board import View
from messagebus.services.monitor.eventlog import Event
from messagebus.services.monitor.history import History

# Agents sweep their counters every 5 s: rates over two sweeps or three, made anew as often.
STEP_MS = 5_000
STEPS_KEPT = 3
NEVER_MS = -STEP_MS


class Concluding:
    """Conclusions from observations in their order."""

    def __init__(self) -> None:
        self._steps: deque[Bus] = deque(maxlen=STEPS_KEPT)
        self._attention = Attention()
        self._last: Bus | None = None
        self._raised: tuple[Raised, ...] = ()
        self._rates: tuple[dict, dict] = ({}, {})  # type: ignore[type-arg]

    def view(self, bus: Bus, history: History, fault: str) -> tuple[View, list[Event]]:
        """Return all that pages show of an observation, and what happened since the one before."""
        events: list[Event] = []
        if not fault:
            if not self._steps or bus.at_ms - self._steps[-1].at_ms >= STEP_MS:
                if self._steps:
                    self._rates = row_rates(self._steps[0], bus), broker_rates(self._steps[0], bus)
                self._steps.append(bus)
            before, self._raised = self._raised, self._attention.step(bus, self._rates[0])
            ruled = _ruled(before, self._raised, self._attention.held, bus.at_ms)
            events = [*self._changed(bus), *ruled]
            self._last = bus
        silent = uncounted(bus).keys()
        flows, through = self._rates
        view = View(
            bus=bus,
            now_ms=bus.at_ms,
            history=history,
            flows={key: each for key, each in flows.items() if key[0] not in silent}
            if silent
            else flows,
            through={name: each for name, each in through.items() if name not in silent},
            raised=self._raised,
            noticed=self._attention.noticed,
            fault=fault,
        )
        return view, events

    def _changed(self, bus: Bus) -> list[Event]:
        if self._last is None:
            return []
        return [Event(e.at_ms, e.kind, e.about, e.text) for e in changes(self._last, bus)]


def _ruled(
    before: tuple[Raised, ...],
    after: tuple[Raised, ...],
    held: Mapping[tuple[str, str], Raised],
    at_ms: int,
) -> list[Event]:
    """Return what was raised, and what is resolved: not what another rule says now."""
    was = {(each.rule.name, each.about) for each in before}
    raised = [
        Event(at_ms, "rule", e.subject, e.text) for e in after if (e.rule.name, e.about) not in was
    ]
    over = [
        Event(at_ms, "rule", e.subject, f"resolved: {e.text}")
        for e in before
        if (e.rule.name, e.about) not in held
    ]
    return [*raised, *over]
