"""Django: one publisher for each process, and publishes that belong to a transaction.

``MESSAGEBUS = {...}`` in Django's settings has the settings of `BusConfig`; without it they are read from the
environment. ``MESSAGEBUS_OUTBOX = "table"`` is the table of the outbox, if it is not the default one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from messagebus import BusConfig, Destination, Publisher
from messagebus.integrations.sharing import SharedPublisher
from messagebus.message import Header, given_options
from messagebus.outbox import Outbox

__all__ = ["publish_on_commit", "publisher"]


def _new_publisher() -> Publisher:
    given = getattr(settings, "MESSAGEBUS", None)
    bus = BusConfig.from_env(os.environ) if given is None else BusConfig.from_mapping(given)
    return Publisher(bus)


_shared = SharedPublisher(_new_publisher)


def publisher() -> Publisher:
    """Return the publisher of this process, started. Thread: any. Raises ConfigError and Stopped."""
    return _shared.get()


@functools.cache
def _outbox() -> Outbox:
    table = getattr(settings, "MESSAGEBUS_OUTBOX", None)
    return Outbox() if table is None else Outbox(table)


def publish_on_commit(
    destination: Destination | str,
    payload: Any,
    *,
    using: str = DEFAULT_DB_ALIAS,
    headers: Mapping[str, Header] | None = None,
    key: str | None = None,
    priority: int | None = None,
    ttl_s: float | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    message_id: str | None = None,
    type: str | None = None,
    content_encoding: str | None = None,
    app_id: str | None = None,
    deliver_after_s: float | None = None,
    deliver_at: datetime | float | None = None,
    redundant: bool | str | None = None,
) -> str:
    """Publish if the current transaction commits, and only then. Returns the message's id.

    It adds a row to the outbox of the database, and a relay publishes the row. With Django's own `on_commit`
    the message is lost if the process ends after the commit. Raises ConfigError outside of `atomic`.
    """
    given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
             content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
    added: str = _outbox().add(connections[using], destination, payload, **given_options(given))
    return added
