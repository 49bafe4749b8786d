"""Publish to any RabbitMQ broker behind a balancer, consume from all of them."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from messagebus.aio import AsyncConsumer, AsyncPublisher
    from messagebus.app import App
    from messagebus.broker import Broker, BrokerList, ListedBroker
    from messagebus.config import Batching, BusConfig, ConsumerConfig, PublisherConfig
    from messagebus.consumer import Consumer
    from messagebus.core.receipts import Receipt
    from messagebus.destination import (
        Destination,
        Queue,
        Source,
        Subscription,
        Topic,
        parse_destination,
    )
    from messagebus.directory import (
        PurgedMessages,
        Registration,
        SubscriptionCount,
        SubscriptionCounts,
        brokers,
        count_subscriptions,
        declare,
        delete_subscriptions,
        purge_subscriptions,
    )
    from messagebus.errors import (
        AlreadySettled,
        BacklogFull,
        BindingError,
        CertificateRefused,
        ChannelRefused,
        ConfigError,
        LinkError,
        LinkLost,
        ListError,
        ListInvalid,
        ListUnavailable,
        LoginRefused,
        MessageBusError,
        MessageInvalid,
        NameInvalid,
        NotFound,
        NotReady,
        PublishError,
        RecordingFailed,
        Refused,
        RegistrationIncomplete,
        Stopped,
        TopologyError,
        TopologyMismatch,
        Unknown,
        Unroutable,
        WrongPayload,
    )
    from messagebus.handling import Park, Reject, RetryLater, RetryPolicy
    from messagebus.hooks import Hooks
    from messagebus.message import Delivery, Message
    from messagebus.outcome import Durability, Outcome, Published
    from messagebus.outgoing import Options, Payload
    from messagebus.parked import (
        ParkedCount,
        ParkedCounts,
        ParkedFilter,
        ParkedMessage,
        ParkedMessages,
        ParkedMoved,
        ParkedProgress,
        count_parked,
        purge_parked,
        read_parked,
        redrive_parked,
    )
    from messagebus.publisher import Publisher
    from messagebus.secret import Secret
    from messagebus.stats import BrokerStats, ConsumerStats, PublisherStats, Status

__all__ = [
    "AlreadySettled",
    "App",
    "AsyncConsumer",
    "AsyncPublisher",
    "BacklogFull",
    "Batching",
    "BindingError",
    "Broker",
    "BrokerList",
    "BrokerStats",
    "BusConfig",
    "CertificateRefused",
    "ChannelRefused",
    "ConfigError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStats",
    "Delivery",
    "Destination",
    "Durability",
    "Hooks",
    "LinkError",
    "LinkLost",
    "ListError",
    "ListInvalid",
    "ListUnavailable",
    "ListedBroker",
    "LoginRefused",
    "Message",
    "MessageBusError",
    "MessageInvalid",
    "NameInvalid",
    "NotFound",
    "NotReady",
    "Options",
    "Outcome",
    "Park",
    "ParkedCount",
    "ParkedCounts",
    "ParkedFilter",
    "ParkedMessage",
    "ParkedMessages",
    "ParkedMoved",
    "ParkedProgress",
    "Payload",
    "PublishError",
    "Published",
    "Publisher",
    "PublisherConfig",
    "PublisherStats",
    "PurgedMessages",
    "Queue",
    "Receipt",
    "RecordingFailed",
    "Refused",
    "Registration",
    "RegistrationIncomplete",
    "Reject",
    "RetryLater",
    "RetryPolicy",
    "Secret",
    "Source",
    "Status",
    "Stopped",
    "Subscription",
    "SubscriptionCount",
    "SubscriptionCounts",
    "Topic",
    "TopologyError",
    "TopologyMismatch",
    "Unknown",
    "Unroutable",
    "WrongPayload",
    "brokers",
    "count_parked",
    "count_subscriptions",
    "declare",
    "delete_subscriptions",
    "parse_destination",
    "purge_parked",
    "purge_subscriptions",
    "read_parked",
    "redrive_parked",
]

# Modules that are imported when their names are first asked for: `import messagebus` and pytest's plug-in,
# which every test run loads, cost next to nothing.
_HOMES = {
    "messagebus.aio": ("AsyncConsumer", "AsyncPublisher"),
    "messagebus.app": ("App",),
    "messagebus.broker": ("Broker", "BrokerList", "ListedBroker"),
    "messagebus.config": ("Batching", "BusConfig", "ConsumerConfig", "PublisherConfig"),
    "messagebus.consumer": ("Consumer",),
    "messagebus.core.receipts": ("Receipt",),
    "messagebus.destination": (
        "Destination",
        "Queue",
        "Source",
        "Subscription",
        "Topic",
        "parse_destination",
    ),
    "messagebus.directory": (
        "PurgedMessages",
        "Registration",
        "SubscriptionCount",
        "SubscriptionCounts",
        "brokers",
        "count_subscriptions",
        "declare",
        "delete_subscriptions",
        "purge_subscriptions",
    ),
    "messagebus.errors": (
        "AlreadySettled",
        "BacklogFull",
        "BindingError",
        "CertificateRefused",
        "ChannelRefused",
        "ConfigError",
        "LinkError",
        "LinkLost",
        "ListError",
        "ListInvalid",
        "ListUnavailable",
        "LoginRefused",
        "MessageBusError",
        "MessageInvalid",
        "NameInvalid",
        "NotFound",
        "NotReady",
        "PublishError",
        "RecordingFailed",
        "Refused",
        "RegistrationIncomplete",
        "Stopped",
        "TopologyError",
        "TopologyMismatch",
        "Unknown",
        "Unroutable",
        "WrongPayload",
    ),
    "messagebus.handling": ("Park", "Reject", "RetryLater", "RetryPolicy"),
    "messagebus.hooks": ("Hooks",),
    "messagebus.message": ("Delivery", "Message"),
    "messagebus.outcome": ("Durability", "Outcome", "Published"),
    "messagebus.outgoing": ("Options", "Payload"),
    "messagebus.parked": (
        "ParkedCount",
        "ParkedCounts",
        "ParkedFilter",
        "ParkedMessage",
        "ParkedMessages",
        "ParkedMoved",
        "ParkedProgress",
        "count_parked",
        "purge_parked",
        "read_parked",
        "redrive_parked",
    ),
    "messagebus.publisher": ("Publisher",),
    "messagebus.secret": ("Secret",),
    "messagebus.stats": ("BrokerStats", "ConsumerStats", "PublisherStats", "Status"),
}

if not TYPE_CHECKING:
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

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
