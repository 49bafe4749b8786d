"""Names by OpenTelemetry's semantic conventions for messaging, version 1.44, and their page on RabbitMQ.

Nearly all of them are in *development*: only ``error.type`` and ``server.*`` are stable. They are
written here and nowhere else. Source: https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

from dataclasses import dataclass

from messagebus.destination import Destination, Source, Subscription

__all__ = [
    "BATCH_COUNT",
    "BUCKETS_S",
    "CONSUMED",
    "CONVERSATION_ID",
    "DEDUPLICATED",
    "DELIVERY_TAG",
    "DESTINATION",
    "BROKERS",
    "ERROR_TYPE",
    "MESSAGE_ID",
    "OPERATION",
    "OPERATION_DURATION",
    "OPERATION_TYPE",
    "PROCESS_DURATION",
    "SCHEMA_URL",
    "SENT",
    "SERVER_ADDRESS",
    "SERVER_PORT",
    "SYSTEM",
    "TEMPLATE",
    "TEMPORARY",
    "VERDICT",
    "Place",
    "error_type",
    "publishing_place",
    "consuming_place",
]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
TEMPLATE = "messaging.destination.template"
TEMPORARY = "messaging.destination.temporary"
MESSAGE_ID = "messaging.message.id"
CONVERSATION_ID = "messaging.message.conversation_id"
BATCH_COUNT = "messaging.batch.message_count"
DELIVERY_TAG = "messaging.rabbitmq.message.delivery_tag"
SERVER_ADDRESS, SERVER_PORT = "server.address", "server.port"
ERROR_TYPE = "error.type"
# Our own: the brokers that confirmed a redundant publish.
BROKERS = "messagebus.brokers"

OPERATION_DURATION = "messaging.client.operation.duration"
PROCESS_DURATION = "messaging.process.duration"
SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"
# Ours: the conventions have no name for it.
DEDUPLICATED = "messagebus.client.deduplicated.messages"
VERDICT = "messagebus.deduplication.verdict"
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


@dataclass(frozen=True, slots=True)
class Place:
    """Place that messages go to or come from.

    name: RabbitMQ's, ``exchange:routing key:queue`` without empty parts. template: this bus's own name,
    the same for all expiring subscriptions of a topic; spans are named by it.
    """

    name: str
    template: str
    is_temporary: bool = False

    def attributes(self) -> dict[str, str | bool]:
        found: dict[str, str | bool] = {
            SYSTEM: "rabbitmq",
            DESTINATION: self.name,
            TEMPLATE: self.template,
        }
        if self.is_temporary:
            found[TEMPORARY] = True
        return found

    def metric_attributes(self) -> dict[str, str]:
        """The attributes with few values: a temporary place has no name of its own."""
        if self.is_temporary:
            return {SYSTEM: "rabbitmq", TEMPLATE: self.template}
        return {SYSTEM: "rabbitmq", DESTINATION: self.name}


def publishing_place(destination: Destination) -> Place:
    """Return the place of an exchange; its routing key is empty."""
    return Place(destination.exchange, str(destination))


def consuming_place(source: Source) -> Place:
    """Return the place of a queue and of the exchange that its messages come through."""
    if not isinstance(source, Subscription):
        return Place(f"{source.exchange}:{source.amqp_queue}", str(source))
    name = f"{source.topic.exchange}:{source.amqp_queue}"
    if source.expires_s:
        return Place(name, f"{source.topic}/(expiring)", is_temporary=True)
    return Place(name, str(source))


def error_type(error: BaseException) -> str:
    """Return the class of an exception, with its module where that is not Python's own."""
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
