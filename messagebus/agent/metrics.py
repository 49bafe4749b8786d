"""The agent's figures for Prometheus, read from a snapshot at each scrape."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["Figure", "Metrics"]

PREFIX = "messagebus_agent_"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. counter: it only grows while the agent runs. queue: that it is about, "" for none.

    Figures of one name stand together.
    """

    name: str
    help: str
    value: float
    counter: bool = False
    queue: str = ""


class Metrics:
    """Renders what `figures` returns, labelled with the broker's name."""

    def __init__(self, broker: str, figures: Callable[[], list[Figure]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(broker, figures))

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


class _Figures(Collector):
    def __init__(self, broker: str, figures: Callable[[], list[Figure]]) -> None:
        self._broker = broker
        self._figures = figures

    def describe(self) -> list[Metric]:
        """Nothing in advance: otherwise the registry collects once while the agent is half built."""
        return []

    def collect(self) -> Iterator[Metric]:
        for _name, same in itertools.groupby(self._figures(), key=lambda figure: figure.name):
            first, *more = same
            kind = CounterMetricFamily if first.counter else GaugeMetricFamily
            labels = ["broker", "queue"] if first.queue else ["broker"]
            family = kind(PREFIX + first.name, first.help, labels=labels)
            for figure in (first, *more):
                values = [self._broker, figure.queue] if figure.queue else [self._broker]
                family.add_metric(values, figure.value)
            yield family
