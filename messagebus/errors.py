"""Every error that messagebus raises, in one tree.

MessageBusError
    ConfigError (also ValueError)     a setting is invalid: key, value, allowed values
        BindingError                  a handler cannot be called with a payload
    NameInvalid (also ValueError)     a topic, queue, subscription or key has an invalid name
    MessageInvalid (also ValueError)  a message is invalid or too large
    WrongPayload (also TypeError)     a body cannot be read as text, JSON or by a codec
    Stopped                           used before start() or after stop()
    NotReady                          start(require=...) did not reach the brokers in time
    PublishError                      carries message_id and outcome
        Refused                       the message is not stored
        Unroutable                    no queue took it
        Unknown                       no confirm: the message may or may not be stored
    BacklogFull                       no room in the backlog for timeout_s
        SpoolFull                     no room in the disk spool either
    LinkError                         carries the broker
        LinkLost                      a connection was not opened, or ended
        LoginRefused                  wrong user, password or virtual host: do not repeat
            CertificateRefused        one end does not trust the other's certificate
        ChannelRefused                the broker closed the channel: code and text
    ListError
        ListUnavailable               no agent answered
        ListInvalid                   an answer is not a valid list
    TopologyError
        RegistrationIncomplete        a broker may accept publishes without the required queue
        TopologyMismatch              a name exists with other options
        NotFound                      a subscription, queue or topic does not exist
    StoreAway                         a store of deduplication did not answer in time
    ReplayGap                         messages behind a checkpoint are gone
    AlreadySettled                    the application answered a delivery twice
    RecordingFailed                   events cannot be written or read

docs/reference/errors.md has what happened, the cause and the remedy for each; `docs` of an error is its
section there.

pika's exceptions never leave ``messagebus._io``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from messagebus.stats import Outcome, Published

__all__ = [
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
    "ReplayGap",
    "SpoolFull",
    "Stopped",
    "StoreAway",
    "TopologyError",
    "TopologyMismatch",
    "Unknown",
    "Unroutable",
    "WrongPayload",
]


# The page with a heading for each class below.
PAGE = "docs/reference/errors.md"


class _Notes:
    """Notes of an error, as tracebacks print them (PEP 678), created at the first access."""

    def __get__(self, error: MessageBusError | None, owner: type) -> list[str]:
        if error is None or not error.docs:
            raise AttributeError("__notes__")
        notes: list[str] = vars(error).setdefault("__notes__", [f"see: {remedy_of(error)}"])
        return notes


class MessageBusError(Exception):
    """Root of all errors of this library.

    docs: page and heading of its cause and remedy, such as ``#notready`` of docs/reference/errors.md; a
    traceback, a command and a log line name it. Empty for an error that has no heading there.
    ends: for an error of `send_many`, the results of the payloads that were accepted before, in order; the
    other payloads were not sent.
    """

    docs: ClassVar[str] = ""
    ends: Sequence[Published] = ()
    __notes__ = _Notes()

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            cls.docs = f"{PAGE}#{cls.__name__.lower()}"


# The largest part of a server's or a driver's text that an error of ours quotes.
REASON_CHARS_MAX = 300


def reason_of(fault: BaseException, chars_max: int | None = None) -> str:
    """Return the text of an error in one line, or the name of its class where it has none.

    chars_max: of the text; None for all of it.
    """
    return one_line(text_of(fault), chars_max) or type(fault).__name__


def one_line(text: str, chars_max: int | None = None) -> str:
    """Return a text with a space in place of each run of white space.

    chars_max: of the result, whose end is cut; None for no limit.
    """
    return " ".join(text.split())[:chars_max]


def text_of(value: object) -> str:
    """Return the text of an error or of an application's object, also where its own `__str__` fails."""
    try:
        return str(value)
    except Exception as fault:  # an application's own __str__
        return f"(its text fails: {type(fault).__name__})"


def docs_of(fault: BaseException) -> str:
    """Return the `docs` of an error of this library; "" for all others."""
    return fault.docs if isinstance(fault, MessageBusError) else ""


def remedy_of(fault: BaseException) -> str:
    """Return the command that prints the section of `docs_of`, also without a checkout; or another `docs`."""
    return docs_of(fault).replace(f"{PAGE}#", "messagebus explain ")


class ConfigError(MessageBusError, ValueError):
    """Raised when a setting is invalid; the text names every invalid key and what each one accepts."""


class BindingError(ConfigError):
    """Raised when a handler cannot be called with a payload; the text names the handler and the parameter."""


class NameInvalid(MessageBusError, ValueError):
    """Raised when a topic, queue, subscription or key has an invalid name; the text has the rule."""


class MessageInvalid(MessageBusError, ValueError):
    """Raised when a message is invalid or too large; nothing was sent."""


class WrongPayload(MessageBusError, TypeError):
    """Raised when a body cannot be read as text, as JSON or by a codec; compare it with its content_type."""


class Stopped(MessageBusError):
    """Raised when a client is used before start() or after stop(); start a new client."""


class NotReady(MessageBusError):
    """Raised when start(require=...) did not reach the brokers in time; the client has been stopped again."""


class PublishError(MessageBusError):
    """Raised when a publish was not confirmed.

    message_id: of the message. destination: such as ``orders`` or ``queue:jobs``. outcome: how the publish
    ended. reason: why, in words.
    """

    outcome: Outcome

    def __init__(self, message_id: str, reason: str = "", destination: str = "") -> None:
        where = f" to {destination}" if destination else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"message {message_id}{where} {self.outcome.value}{why}")
        self.message_id = message_id
        self.reason = reason
        self.destination = destination


class Refused(PublishError):
    """Raised when the message is not stored: a broker rejected it, or it was not sent in time; try again."""

    outcome = Outcome.REFUSED


class Unroutable(PublishError):
    """Raised when no queue took the message; create a subscription first."""

    outcome = Outcome.UNROUTABLE


class Unknown(PublishError):
    """Raised when no confirm arrived: it may or may not be stored; publish again with the same message_id."""

    outcome = Outcome.UNKNOWN


class BacklogFull(MessageBusError):
    """Raised when the backlog was full for timeout_s; the message was not accepted, try again later."""


class SpoolFull(BacklogFull):
    """Raised when the backlog was full and the disk spool took nothing: it is full, or its disk fails."""


class LinkError(MessageBusError):
    """Raised when a connection to a broker fails.

    broker: ``host:port``. reason: why, in words. absent: True if nothing listens at this address.
    """

    def __init__(self, broker: str, reason: str) -> None:
        super().__init__(f"{broker}: {reason}")
        self.broker = broker
        self.reason = reason
        self.absent = False


class LinkLost(LinkError):
    """Raised when a connection could not be opened, or has ended; repeat the call."""


class LoginRefused(LinkError):
    """Raised when user, password or virtual host are wrong; correct the settings, repeating does not help."""


class CertificateRefused(LoginRefused):
    """Raised when one end does not trust the other's certificate; correct the files, names or settings."""


# AMQP's reply codes of a channel: no such queue or exchange; no right to it; it is another connection's own;
# its arguments differ from the declared ones, or, of a publish, too large or with a wrong property.
NOT_FOUND, ACCESS_REFUSED, RESOURCE_LOCKED, PRECONDITION_FAILED = 404, 403, 405, 406
# Of a connection: no such virtual host, no right to it, or too many channels.
NOT_ALLOWED = 530


class ChannelRefused(LinkError):
    """Raised when the broker closed the channel; code is AMQP's reply code (404, 403, 406, ...)."""

    def __init__(self, broker: str, code: int, text: str) -> None:
        super().__init__(broker, f"{code} {text}")
        self.code = code


class ListError(MessageBusError):
    """Raised when there is no usable answer to a request for the consumer list."""


class ListUnavailable(ListError):
    """Raised when no agent answered; clients keep using the last list, repeat the call."""


class ListInvalid(ListError):
    """Raised when an answer is not a valid consumer list; clients keep using the last list.

    line: number of the line with the fault, from 1; 0 for the whole answer.
    """

    def __init__(self, reason: str, *, line: int = 0) -> None:
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.line = line


class TopologyError(MessageBusError):
    """Raised when topics, queues or subscriptions could not be created or found."""


class RegistrationIncomplete(TopologyError):
    """Raised when a broker may accept publishes without the required queue; repeat the call.

    missing: broker -> reason, for each such broker.
    """

    def __init__(self, what: str, missing: Mapping[str, str]) -> None:
        where = ", ".join(f"{broker} ({reason})" for broker, reason in sorted(missing.items()))
        super().__init__(f"{what} is incomplete: {where or 'no agent answered'}")
        self.missing = dict(missing)


class TopologyMismatch(TopologyError):
    """Raised when a queue, topic or subscription exists with other options; the text shows both."""


class NotFound(TopologyError):
    """Raised when a subscription, queue or topic does not exist; the text names it."""


class StoreAway(MessageBusError):
    """Raised when a store did not answer a call in time; repeat the call unchanged, which is safe."""


class AlreadySettled(MessageBusError):
    """Raised when the application answers a delivery a second time: a bug in the application."""


class RecordingFailed(MessageBusError):
    """Raised when recorded events cannot be written or read; make room, or use another folder."""


class ReplayGap(MessageBusError):
    """Raised when a stream no longer has the messages behind a checkpoint.

    broker: ``host:port``. reason: in words. lost: number of messages that are gone; None if not known.
    """

    def __init__(self, broker: str, reason: str, lost: int | None = None) -> None:
        super().__init__(f"{broker}: {reason}")
        self.broker, self.reason, self.lost = broker, reason, lost
