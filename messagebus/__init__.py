"""Publish to any RabbitMQ broker behind a balancer, consume from all of them."""

import logging

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
    NotReady,
    PublishError,
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
    "NotReady",
    "Options",
    "Outcome",
    "Park",
    "Payload",
    "PublishError",
    "Published",
    "Publisher",
    "PublisherConfig",
    "PublisherStats",
    "PurgedMessages",
    "Queue",
    "Receipt",
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
    "count_subscriptions",
    "declare",
    "delete_subscriptions",
    "parse_destination",
    "purge_subscriptions",
]

# The library says nothing unless the application listens.
logging.getLogger("messagebus").addHandler(logging.NullHandler())
