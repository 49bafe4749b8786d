"""Values of the pages' templates, made of one board and the query of an address.

Pure: no I/O, no clock. Texts are plain; the templates escape them.
"""

from messagebus_monitor.pages.brokers import broker, brokers
from messagebus_monitor.pages.matrix import chosen
from messagebus_monitor.pages.others import clients, journal, parked, rules, topology
from messagebus_monitor.pages.overview import OVERVIEW_EVENTS, OVERVIEW_ROWS, overview
from messagebus_monitor.pages.planned import plan
from messagebus_monitor.pages.shared import (
    BUS,
    ROWS_A_PAGE,
    Settings,
    broker_href,
    chrome,
    labels,
    source_href,
)
from messagebus_monitor.pages.sources import subscription, subscriptions
from messagebus_monitor.pages.traced import AGO_S, traced

__all__ = [
    "AGO_S",
    "BUS",
    "OVERVIEW_EVENTS",
    "OVERVIEW_ROWS",
    "ROWS_A_PAGE",
    "Settings",
    "broker",
    "broker_href",
    "brokers",
    "chosen",
    "chrome",
    "clients",
    "journal",
    "labels",
    "overview",
    "parked",
    "plan",
    "rules",
    "source_href",
    "subscription",
    "subscriptions",
    "topology",
    "traced",
]
