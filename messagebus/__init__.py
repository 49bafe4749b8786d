"""Publish to any RabbitMQ broker behind a balancer, consume from all of them.

What applications need. Operators' names are in `messagebus.admin`, all errors in `messagebus.errors`.
"""

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that holds it. A module is imported when one of its names is first asked for:
# `import messagebus` and pytest's plug-in, which every test run loads, cost next to nothing. Type
# checkers read `__init__.pyi`.
_HOME_OF = {
    "AlreadySettled": "messagebus.errors",
    "App": "messagebus.app",
    "AppStats": "messagebus.stats",
    "AsyncConsumer": "messagebus.aio",
    "AsyncPublisher": "messagebus.aio",
    "AsyncRelay": "messagebus.outbox",
    "AsyncReplay": "messagebus.replay",
    "BacklogFull": "messagebus.errors",
    "Batching": "messagebus.config",
    "Broker": "messagebus.broker",
    "BrokerStats": "messagebus.stats",
    "BusConfig": "messagebus.config",
    "CertificateRefused": "messagebus.errors",
    "Checkpoint": "messagebus.core.checkpoint",
    "ConfigError": "messagebus.errors",
    "Consumer": "messagebus.consumer",
    "ConsumerConfig": "messagebus.config",
    "ConsumerStats": "messagebus.stats",
    "Dedup": "messagebus.stores",
    "Delivery": "messagebus.message",
    "Destination": "messagebus.destination",
    "Durability": "messagebus.stats",
    "Hooks": "messagebus.hooks",
    "LinkLost": "messagebus.errors",
    "LoginRefused": "messagebus.errors",
    "Message": "messagebus.message",
    "MessageBusError": "messagebus.errors",
    "MessageInvalid": "messagebus.errors",
    "NameInvalid": "messagebus.errors",
    "NotFound": "messagebus.errors",
    "NotReady": "messagebus.errors",
    "Once": "messagebus.inbox",
    "Outbox": "messagebus.outbox",
    "Outcome": "messagebus.stats",
    "Park": "messagebus.handling",
    "Payload": "messagebus.message",
    "PublishError": "messagebus.errors",
    "Published": "messagebus.stats",
    "Publisher": "messagebus.publisher",
    "PublisherConfig": "messagebus.config",
    "PublisherStats": "messagebus.stats",
    "Queue": "messagebus.destination",
    "Receipt": "messagebus.core.deliveries",
    "Refused": "messagebus.errors",
    "Registration": "messagebus.admin.directory",
    "RegistrationIncomplete": "messagebus.errors",
    "Reject": "messagebus.handling",
    "Relay": "messagebus.outbox",
    "RelayConfig": "messagebus.outbox",
    "RelayStats": "messagebus.stats",
    "Replay": "messagebus.replay",
    "ReplayGap": "messagebus.errors",
    "Replayed": "messagebus.replay",
    "RetryLater": "messagebus.handling",
    "RetryPolicy": "messagebus.handling",
    "Secret": "messagebus.secret",
    "Source": "messagebus.destination",
    "Spool": "messagebus.config",
    "SpoolFull": "messagebus.errors",
    "Status": "messagebus.stats",
    "Stopped": "messagebus.errors",
    "StoreAway": "messagebus.errors",
    "Stream": "messagebus.destination",
    "Subscription": "messagebus.destination",
    "Topic": "messagebus.destination",
    "TopologyError": "messagebus.errors",
    "TopologyMismatch": "messagebus.errors",
    "Unknown": "messagebus.errors",
    "Unroutable": "messagebus.errors",
    "WrongPayload": "messagebus.errors",
    "declare": "messagebus.admin.directory",
}

__all__ = list(_HOME_OF)


def _importer(namespace: dict[str, Any], home_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports a public name when it is first asked for."""

    def import_name(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(home), name)
        return value

    return import_name


__getattr__ = _importer(globals(), _HOME_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The library says nothing unless the application listens.
logging.getLogger("messagebus").addHandler(logging.NullHandler())
