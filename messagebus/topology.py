"""Objects that must exist on every broker: the pure description, for all that declare them.

An agent declares them on its own broker; without agents the library declares them itself. Both
read them from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from messagebus.clock import MS_PER_S
from messagebus.destination import (
    DELIVERY_LIMIT_MAX,
    PARTS,
    SEGMENTS,
    STREAM_KEEP_BYTES,
    STREAM_KEEP_S,
    UNDELIVERED_QUEUE,
    Delay,
    Queue,
    Source,
    Stream,
    Subscription,
    Topic,
    parse_destination,
)
from messagebus.errors import NameInvalid
from messagebus.stats import Durability

__all__ = [
    "BORN",
    "DUE",
    "GATE",
    "LADDER",
    "OPTION_KINDS",
    "OUT",
    "UNDELIVERED",
    "Binding",
    "Declarations",
    "Exchange",
    "Options",
    "STREAM_PREFIX",
    "QueueSpec",
    "Wanted",
    "as_list",
    "declarations",
    "differences",
    "joined",
    "options_of",
    "parse_wanted",
    "read_item",
    "segment_declarations",
    "to_item",
    "topic_of",
    "with_options",
]

# The mark in a broker that it may take publishes: a message in this queue. It is durable and classic and the
# message is not, so the broker drops the message whenever it starts, on all versions; it keeps exchanges that
# are not durable where Khepri holds its definitions (RabbitMQ 4.3), and refuses such queues there.
GATE = "mb.ready"
# The exchange where delayed messages leave their steps. Nothing is bound to it: all goes on to OUT, its
# alternate exchange, so that one declaration leads them there at once, wherever they went before.
DUE = "mb.due"
# Leads due messages to their queues, each bound under its own name and its destination's exchange's.
OUT = "mb.out"
# Takes messages that OUT has no queue for. Not durable: after a boot it exists again only when all queues
# are bound; else messages due while the broker still reads its bindings would be taken for undelivered.
UNDELIVERED = "mb.undelivered"
# Argument of every queue: the number of the topology entry when it was declared. RabbitMQ stores
# unknown arguments and does not compare them at redeclaration.
BORN = "mb-born"

Wanted = Topic | Source | Stream | Delay
"""Entry of the topology."""
Options = Mapping[str, str | int | bool]
"""Options of an entry beside its name, without defaults. Keys: OPTION_KINDS."""

OPTION_KINDS: Mapping[str, type] = {
    "durability": str,
    "single_active": bool,
    "expires_s": int,
    "delivery_limit": int,
    "keep_s": int,
    "keep_bytes": int,
    "plain": bool,
    "ordered": bool,
    "partitions": int,
    "homes": str,
    "mqtt": bool,
    "ttl_s": int,
    "deflate": bool,
}
OF_STREAMS, OF_TOPICS = {"keep_s", "keep_bytes"}, {"homes", "mqtt", "deflate"}
# The exchange that RabbitMQ's plug-in publishes to, `/` in an MQTT topic as `.` in the routing key.
MQTT_EXCHANGE = "amq.topic"
DELAY_PREFIX, STREAM_PREFIX = "delay:", "stream:"
# Bounds of one segment of a stream; the broker drops whole ones.
SEGMENT_SHARE, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX = 20, 100_000, 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Exchange to declare.

    alternate: the exchange that takes messages that this one has no queue for, "" for none.
    """

    name: str
    type: str = "fanout"
    durable: bool = True
    alternate: str = ""

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of exchange.declare."""
        return {"alternate-exchange": self.alternate} if self.alternate else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """Durable queue to declare. arguments: as given to queue.declare, x-queue-type among them."""

    name: str
    arguments: Mapping[str, str | int | bool]

    @property
    def needs_settling(self) -> bool:
        """All but classic queues do: RabbitMQ writes their names after the answer."""
        return self.arguments["x-queue-type"] != "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Binding to declare. queue: the target's name. to_exchange: the target is an exchange."""

    exchange: str
    queue: str
    routing_key: str = ""
    to_exchange: bool = False

    def call(self, verb: str = "bind") -> tuple[str, dict[str, str]]:
        """Return the request that makes it, and its arguments; with "unbind" the one that removes it."""
        key = {"routing_key": self.routing_key}
        if self.to_exchange:
            return f"exchange_{verb}", {
                "destination": self.queue,
                "source": self.exchange,
                **key,
            }
        return f"queue_{verb}", {"queue": self.queue, "exchange": self.exchange, **key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """Declarations in order: exchanges, then queues, and the bindings only when the queues are settled.

    So a bound queue is a settled one, and no confirm can come from one that is not.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[QueueSpec, ...] = field(default=())
    bindings: tuple[Binding, ...] = ()

    @property
    def needs_settling(self) -> bool:
        return any(queue.needs_settling for queue in self.queues)


def joined(parts: Iterable[Declarations]) -> Declarations:
    """Return all of these as one; an exchange that several need is in it once."""
    parts = list(parts)
    return Declarations(
        exchanges=tuple(dict.fromkeys(each for part in parts for each in part.exchanges)),
        queues=tuple(each for part in parts for each in part.queues),
        bindings=tuple(each for part in parts for each in part.bindings),
    )


def declarations(wanted: Wanted, *, born: int = 0) -> Declarations:
    """Return what one entry needs on a broker that has LADDER.

    born: number of the entry, kept in the queue (0: not kept, no agent).
    """
    mark: dict[str, str | int | bool] = {BORN: born} if born else {}
    match wanted:
        case Topic(partitions=partitions):
            through = Exchange(name=wanted.exchange, type="direct" if partitions else "fanout")
            to: Any = {"queue": through.name, "routing_key": wanted.name, "to_exchange": True}
            way = (Binding(exchange=MQTT_EXCHANGE, **to),) if wanted.mqtt else ()
            return Declarations(exchanges=(through,), bindings=way)
        case Subscription(topic=topic) if wanted.has_segments:
            return Declarations(
                exchanges=(Exchange(name=topic.exchange, type="direct"),),
                queues=(
                    _queues(wanted, mark)[0],
                    QueueSpec(
                        name=wanted.group_queue, arguments={"x-queue-type": "classic", **mark}
                    ),
                ),
            )
        case Subscription(topic=topic):
            queue, parts = wanted.amqp_queue, topic.partitions
            of_topic = (
                Binding(exchange=topic.exchange, queue=queue),
                # Not through the topic's exchange: OUT could not tell whether that leads anywhere.
                Binding(exchange=OUT, queue=queue, routing_key=topic.exchange),
            )
            again = Binding(exchange=OUT, queue=queue, routing_key=queue)
            return Declarations(
                exchanges=(Exchange(name=topic.exchange, type="direct" if parts else "fanout"),),
                queues=_queues(wanted, mark),
                bindings=(again,) if parts else (*of_topic, again),
            )
        case Queue():
            queue = wanted.amqp_queue
            return Declarations(
                exchanges=(Exchange(name=wanted.exchange),),
                queues=_queues(wanted, mark),
                bindings=(
                    Binding(exchange=wanted.exchange, queue=queue),
                    Binding(exchange=OUT, queue=queue, routing_key=wanted.exchange),
                    Binding(exchange=OUT, queue=queue, routing_key=queue),
                ),
            )
        case Stream(topic=topic):
            queue, parts = wanted.amqp_queue, topic.partitions
            bindings = (
                Binding(exchange=topic.exchange, queue=queue),
                Binding(exchange=OUT, queue=queue, routing_key=topic.exchange),
            )
            return Declarations(
                exchanges=(Exchange(name=topic.exchange, type="direct" if parts else "fanout"),),
                queues=(QueueSpec(name=queue, arguments=_keeping(wanted) | mark),),
                bindings=() if parts else bindings,
            )
        case Delay():
            return Declarations(
                exchanges=(Exchange(name=wanted.exchange),),
                queues=(QueueSpec(name=wanted.amqp_queue, arguments=_delaying(wanted) | mark),),
                bindings=(Binding(exchange=wanted.exchange, queue=wanted.amqp_queue),),
            )


def segment_declarations(
    of: Topic | Subscription | Stream, segment: str, *, born: int = 0
) -> Declarations:
    """Return what a segment of a partitioned topic needs on its home; of a subscription: its queue there; of
    its stream, and of a subscription without order: that queue, which all segments share.

    segment: partition and epoch, such as ``7.1``. All subscriptions are cut off at once by the one binding of
    the topic's part.
    """
    topic = of if isinstance(of, Topic) else of.topic
    through = Exchange(name=f"{SEGMENTS}{topic.name}/{segment}")
    if isinstance(of, Topic):
        parts = f"{PARTS}{topic.name}"
        binding = Binding(exchange=parts, queue=through.name, routing_key=segment, to_exchange=True)
        return Declarations(
            exchanges=(Exchange(name=parts, type="direct"), through), bindings=(binding,)
        )
    if isinstance(of, Stream) or not of.ordered:
        queue = declarations(of, born=born).queues[-1]
    else:
        mark: Options = {BORN: born} if born else {}
        queue = _queues(replace(of, single_active=True), mark, of.segment_queue(segment))[-1]
    return Declarations(
        exchanges=(through,),
        queues=(queue,),
        bindings=(Binding(exchange=through.name, queue=queue.name),),
    )


def _queues(source: Source, mark: Options, name: str = "") -> tuple[QueueSpec, ...]:
    """Return the queue, preceded by the one for messages that were rejected or reached the delivery limit.

    name: of the queue, in place of its source's.
    """
    name = name or source.amqp_queue
    own = dict[str, str | int | bool]()
    if source.single_active:
        own["x-single-active-consumer"] = True
    if isinstance(source, Subscription) and source.expires_s:
        own["x-expires"] = source.expires_s * MS_PER_S
    if isinstance(source, Subscription) and source.ttl_s:
        own["x-message-ttl"] = source.ttl_s * MS_PER_S
    is_quorum = source.durability is Durability.FSYNC
    kind = {"x-queue-type": "quorum" if is_quorum else "classic"}
    # By RabbitMQ's default a `max-length` of any policy would drop the oldest messages.
    own["x-overflow"] = "reject-publish"
    if is_quorum:
        own["x-delivery-limit"] = source.delivery_limit or DELIVERY_LIMIT_MAX
    if "x-expires" in own:
        return (QueueSpec(name=name, arguments={**kind, **own, **mark}),)
    own |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": source.parking_queue}
    if is_quorum:
        # It needs the overflow policy reject-publish.
        own["x-dead-letter-strategy"] = "at-least-once"
    return (
        QueueSpec(
            name=source.parking_queue, arguments={**kind, **_never_dropping(is_quorum), **mark}
        ),
        QueueSpec(name=name, arguments={**kind, **own, **mark}),
    )


def _never_dropping(is_quorum: bool) -> dict[str, str | int | bool]:
    """Return the arguments of a parking queue, which keeps what it has.

    A full one refuses: by RabbitMQ's default a `max-length` of any policy would drop the oldest parked
    messages. The highest delivery limit: RabbitMQ 4 would drop a parked message after twenty looks.
    """
    limit = {"x-delivery-limit": DELIVERY_LIMIT_MAX} if is_quorum else {}
    return {**limit, "x-overflow": "reject-publish"}


def _keeping(stream: Stream) -> dict[str, str | int | bool]:
    segment = min(max(stream.keep_bytes // SEGMENT_SHARE, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)
    return {
        "x-queue-type": "stream",
        "x-max-age": f"{stream.keep_s}s",
        "x-max-length-bytes": stream.keep_bytes,
        "x-stream-max-segment-size-bytes": segment,
    }


def _delaying(step: Delay) -> dict[str, str | int | bool]:
    """Return arguments with one TTL for the queue: a message's own would wait behind the one before it.

    Without a dead-letter routing key the message's own stays, which names its destination.
    """
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": step.ms,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": DUE,
        "x-dead-letter-strategy": "at-least-once",
    }


LADDER = Declarations(
    exchanges=(
        Exchange(name=UNDELIVERED, durable=False),
        Exchange(name=OUT, type="direct", alternate=UNDELIVERED),
        Exchange(name=DUE, type="direct", alternate=OUT),
    ),
    queues=(
        QueueSpec(
            name=UNDELIVERED_QUEUE,
            arguments={"x-queue-type": "quorum", **_never_dropping(is_quorum=True)},
        ),
    ),
    bindings=(Binding(exchange=UNDELIVERED, queue=UNDELIVERED_QUEUE),),
)
"""Declarations of every broker beside its entries, so that due messages leave their steps.

RabbitMQ holds at most 32 messages of a step that it could not hand on: without UNDELIVERED they would stop
all behind them. Bound last, when all else is.
"""


def as_list(names: object) -> list[Any]:
    """Return names, topics or sources as a list; one of them counts as a list of one. Raises NameInvalid."""
    if isinstance(names, str | Topic | Queue | Subscription | Stream | Delay):
        return [names]
    if isinstance(names, bytes | Mapping) or not isinstance(names, Iterable):
        raise NameInvalid(f"names {names!r}: a list of names wanted")
    return list(names)


def parse_wanted(text: str) -> Wanted:
    """Read ``orders`` (topic), ``orders/billing`` (subscription), ``queue:jobs``, ``stream:orders``,
    ``delay:60000``.

    str() reverses it. Raises NameInvalid.
    """
    if text.startswith(DELAY_PREFIX):
        digits = text.removeprefix(DELAY_PREFIX)
        if not (digits.isascii() and digits.isdigit() and str(int(digits[:12])) == digits):
            raise NameInvalid(f"{text!r}: a delay is a whole number of milliseconds")
        return Delay(int(digits))
    if text.startswith(STREAM_PREFIX):
        return Stream(text.removeprefix(STREAM_PREFIX))
    if "/" not in text:
        return parse_destination(text)
    topic, _, name = text.partition("/")
    parsed = parse_destination(topic)
    if not isinstance(parsed, Topic):
        raise NameInvalid(f"{text!r}: only a topic has subscriptions")
    return Subscription(parsed, name)


# Options beside the name, of which the value is that of the attribute; with their defaults.
_DEFAULTS: dict[type, dict[str, int | bool | None]] = {
    Topic: {"mqtt": None, "deflate": False},
    Queue: {"single_active": False, "delivery_limit": 0, "plain": False},
    Subscription: {
        "single_active": False,
        "expires_s": 0,
        "delivery_limit": 0,
        "plain": False,
        "ordered": True,
        "ttl_s": 0,
    },
    Stream: {"keep_s": STREAM_KEEP_S, "keep_bytes": STREAM_KEEP_BYTES},
}


def options_of(wanted: Wanted) -> dict[str, str | int | bool]:
    """Return the options beside the name that differ from their defaults; `with_options` reads them back."""
    options = dict[str, str | int | bool]()
    if wanted.durability is not Durability.FSYNC:
        options["durability"] = wanted.durability.value
    for name, default in _DEFAULTS.get(type(wanted), {}).items():
        if (value := getattr(wanted, name)) != default:
            options[name] = value
    topic = wanted.topic if isinstance(wanted, Subscription | Stream) else wanted
    if isinstance(topic, Topic) and topic.partitions:
        options["partitions"] = topic.partitions
        if topic.homes and topic is wanted:
            options["homes"] = topic.homes
    return options


def with_options(name: str, options: Options) -> Wanted:
    """Return the topic, subscription or queue of this name with these options. Raises NameInvalid."""
    wanted = parse_wanted(name)
    _check_kinds(name, options)
    durability = _durability(name, options.get("durability", Durability.FSYNC.value))
    others = {key: value for key, value in options.items() if key != "durability"}
    match wanted:
        case _ if not isinstance(wanted, Stream) and OF_STREAMS & others.keys():
            raise NameInvalid(f"{name}: only a stream has {', '.join(sorted(OF_STREAMS))}")
        case _ if not isinstance(wanted, Topic) and OF_TOPICS & others.keys():
            raise NameInvalid(f"{name}: only a topic has {', '.join(OF_TOPICS & others.keys())}")
        case Subscription(topic=topic, name=own):
            parts: Any = {"partitions": others.pop("partitions", 0)}
            return Subscription(Topic(topic.name, durability, **parts), own, **others)  # type: ignore[arg-type]
        case Topic() if others and others.keys() <= {"partitions", *OF_TOPICS}:
            return Topic(wanted.name, durability, **others)  # type: ignore[arg-type]
        case Stream(topic=topic) if options.keys() <= OF_STREAMS | {"partitions"}:
            parts = {"partitions": others.pop("partitions", 0)}
            return Stream(Topic(topic.name, **parts), **others)  # type: ignore[arg-type]
        case Stream():
            raise NameInvalid(f"{name}: a stream has keep_s and keep_bytes, no other option")
        case Queue(name=own) if others and others.keys() <= {
            "delivery_limit",
            "single_active",
            "plain",
        }:
            return Queue(own, durability, **others)  # type: ignore[arg-type]
        case _ if others:
            raise NameInvalid(f"{name}: only a subscription has {', '.join(others)}")
        case Topic():
            return Topic(wanted.name, durability)
        case Queue():
            return Queue(wanted.name, durability)
        case Delay():
            if options:
                raise NameInvalid(f"{name}: a delay has no options")
            return wanted


def _check_kinds(name: str, options: Options) -> None:
    for key, value in options.items():
        kind = OPTION_KINDS.get(key)
        if kind is None:
            known = ", ".join(OPTION_KINDS)
            raise NameInvalid(f"{name}: unknown option {key!r}; there are {known}")
        if type(value) is not kind:
            raise NameInvalid(f"{name}: {key} must be {kind.__name__}")


def _durability(name: str, value: object) -> Durability:
    try:
        return Durability(value)
    except ValueError:
        allowed = ", ".join(each.value for each in Durability)
        raise NameInvalid(f"{name}: durability {value!r}; there are {allowed}") from None


def topic_of(name: str) -> str:
    """Return what is published to for this name to get it: ``orders`` for ``orders/billing``."""
    return name.partition("/")[0]


def to_item(wanted: Wanted) -> str | dict[str, str | int | bool]:
    """Return the form of a registration: the name, or an object when there are options too."""
    options = options_of(wanted)
    return {"name": str(wanted), **options} if options else str(wanted)


def read_item(item: object) -> Wanted:
    """Read the output of `to_item`, or of another client. Raises NameInvalid."""
    if isinstance(item, str):
        return parse_wanted(item)
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise NameInvalid(f'{item!r}: a name, or an object such as {{"name": "queue:jobs"}}')
    return with_options(item["name"], {key: item[key] for key in item if key != "name"})


def against_partitions(
    wanted: Subscription | Stream, own: str | int, of_topic: str | int | None
) -> str:
    """Return why it cannot be read with `own` partitions, "" where it can. of_topic: None: no such topic."""
    if own == (of_topic or 0):
        return ""
    if of_topic is None:
        todo = f"messagebus declare {wanted.topic} --partitions {own}"
        return f"{wanted}: its topic, with {own} partitions, has to be declared first: {todo}"
    return f"{wanted}: partitions is wanted {own} and its topic exists with {of_topic}"


def differences(wanted: Wanted, options: Options) -> str:
    """Return how `wanted` differs from an existing one with these options; "" for no difference.

    Both values stand in the text. Levels below fsync need the same queues, so they agree. Options that a
    subscription leaves out do not count, nor does a queue's delivery limit.
    """
    asked = options_of(wanted)
    keys = [key for key in asked if key != "mqtt"]  # the one that may change
    if not isinstance(wanted, Subscription | Stream):
        keys = list(dict.fromkeys(["durability", *keys]))
    default: Options = {
        "durability": Durability.FSYNC.value,
        "single_active": False,
        "expires_s": 0,
        "delivery_limit": 0,
        "keep_s": STREAM_KEEP_S,
        "keep_bytes": STREAM_KEEP_BYTES,
        "plain": False,
        "ordered": True,
        "partitions": 0,
        "homes": "",
        "ttl_s": 0,
        "deflate": False,
    }
    told = []
    for key in keys:
        want, have = asked.get(key, default[key]), options.get(key, default[key])
        if key == "durability" and (want == "fsync") == (have == "fsync"):
            continue
        if want != have:
            told.append(f"{key} is wanted {want!r} and exists {have!r}".replace("'", ""))
            if key == "partitions":
                told[-1] += ", for ever: make a topic of another name"
    return f"{wanted}: {', '.join(told)}" if told else ""
