"""Publish to any RabbitMQ broker behind a balancer, consume from all of them."""

import importlib
import logging
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that holds it. A module is imported when one of its names is first asked for:
# `import messagebus` and pytest's plug-in, which every test run loads, cost next to nothing. Type
# checkers read `__init__.pyi`.
_HOME_OF = {
    "AlreadySettled": "messagebus.errors",
    "App": "messagebus.app",
    "AsyncConsumer": "messagebus.aio",
    "AsyncPublisher": "messagebus.aio",
    "AsyncRelay": "messagebus.outbox",
    "AsyncReplay": "messagebus.replay",
    "BacklogFull": "messagebus.errors",
    "Batching": "messagebus.config",
    "BindingError": "messagebus.errors",
    "Broker": "messagebus.broker",
    "BrokerList": "messagebus.broker",
    "BrokerStats": "messagebus.stats",
    "BusConfig": "messagebus.config",
    "CertificateRefused": "messagebus.errors",
    "ChannelRefused": "messagebus.errors",
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
    "LinkError": "messagebus.errors",
    "LinkLost": "messagebus.errors",
    "ListError": "messagebus.errors",
    "ListInvalid": "messagebus.errors",
    "ListUnavailable": "messagebus.errors",
    "ListedBroker": "messagebus.broker",
    "LoginRefused": "messagebus.errors",
    "Message": "messagebus.message",
    "MessageBusError": "messagebus.errors",
    "MessageInvalid": "messagebus.errors",
    "NameInvalid": "messagebus.errors",
    "NotFound": "messagebus.errors",
    "NotReady": "messagebus.errors",
    "Once": "messagebus.inbox",
    "Options": "messagebus.message",
    "Outbox": "messagebus.outbox",
    "Outcome": "messagebus.stats",
    "Park": "messagebus.handling",
    "ParkedCount": "messagebus.admin.parked",
    "ParkedCounts": "messagebus.admin.parked",
    "ParkedFilter": "messagebus.admin.parked",
    "ParkedMessage": "messagebus.admin.parked",
    "ParkedMessages": "messagebus.admin.parked",
    "ParkedMoved": "messagebus.admin.parked",
    "ParkedProgress": "messagebus.admin.parked",
    "Payload": "messagebus.message",
    "PublishError": "messagebus.errors",
    "Published": "messagebus.stats",
    "Publisher": "messagebus.publisher",
    "PublisherConfig": "messagebus.config",
    "PublisherStats": "messagebus.stats",
    "PurgedMessages": "messagebus.admin.directory",
    "Queue": "messagebus.destination",
    "Receipt": "messagebus.core.deliveries",
    "RecordingFailed": "messagebus.errors",
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
    "SpoolDropped": "messagebus.admin.spool",
    "SpoolFolderStatus": "messagebus.admin.spool",
    "SpoolFull": "messagebus.errors",
    "SpooledMessage": "messagebus.admin.spool",
    "Status": "messagebus.stats",
    "Stopped": "messagebus.errors",
    "StoreAway": "messagebus.errors",
    "Stream": "messagebus.destination",
    "Subscription": "messagebus.destination",
    "SubscriptionCount": "messagebus.admin.directory",
    "SubscriptionCounts": "messagebus.admin.directory",
    "Topic": "messagebus.destination",
    "TopologyError": "messagebus.errors",
    "TopologyMismatch": "messagebus.errors",
    "Unknown": "messagebus.errors",
    "Unroutable": "messagebus.errors",
    "WrongPayload": "messagebus.errors",
    "brokers": "messagebus.admin.directory",
    "count_parked": "messagebus.admin.parked",
    "count_subscriptions": "messagebus.admin.directory",
    "declare": "messagebus.admin.directory",
    "delete_subscriptions": "messagebus.admin.directory",
    "drain_broker": "messagebus.admin.directory",
    "drop_spooled": "messagebus.admin.spool",
    "parse_destination": "messagebus.destination",
    "purge_parked": "messagebus.admin.parked",
    "purge_subscriptions": "messagebus.admin.directory",
    "read_parked": "messagebus.admin.parked",
    "read_spool": "messagebus.admin.spool",
    "redrive_parked": "messagebus.admin.parked",
    "spool_status": "messagebus.admin.spool",
}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The library says nothing unless the application listens.
logging.getLogger("messagebus").addHandler(logging.NullHandler())
