"""`messagebus publish`, `consume` and `from-file`: messages in and out of pipes and files."""

from __future__ import annotations

import json
import mimetypes
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

import click

from messagebus.admin import directory
from messagebus.bodies import BINARY
from messagebus.commands.exits import Exit
from messagebus.commands.options import (
    Duration,
    NumberRange,
    bus_settings,
    durability_option,
    subscription_option,
    topic_and_subscription,
)
from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig
from messagebus.consumer import Consumer, as_source
from messagebus.destination import Destination, parse_destination
from messagebus.envelope import Enveloped, Layout, delivered, read_envelope, write_envelope
from messagebus.errors import MessageBusError, MessageInvalid
from messagebus.message import BODY_BYTES_MAX, Delivery, Message, Options
from messagebus.publisher import Publisher
from messagebus.stats import Durability, Outcome, Published
from messagebus.terminal import Progress, plural, printable, say

# What is left in the spool is sent by the next publisher of its folder.
SAFE = (Outcome.CONFIRMED, Outcome.SPOOLED)
PUBLISH_STOP_S = 30.0
# Period at which a waiting consumer looks whether it is to stop.
RECEIVE_STEP_S = 0.2
# A body is text of up to six characters a byte, beside 64 KiB of headers.
LINE_BYTES_MAX = 6 * BODY_BYTES_MAX + (1 << 20)


def destination_of(text: str, durability: str) -> Destination:
    parsed = parse_destination(text)
    return replace(parsed, durability=Durability(durability))


def rate_option(command: Any) -> Any:
    return click.option(
        "--rate",
        "rate_per_s",
        type=NumberRange(min=0.001),
        help="At most this many messages a second.",
    )(command)


new_ids_option = click.option(
    "--new-ids", is_flag=True, help="Give envelopes new ids: readers take them for new messages."
)


class Sending:
    """The publishes of one command: paced, counted by outcome; the first that is not safe is told."""

    def __init__(self, rate_per_s: float | None) -> None:
        self.bus, self._config = bus_settings(), PublisherConfig.from_env(os.environ)
        self._pause_s = 1 / rate_per_s if rate_per_s else 0.0
        self._due_s = time.monotonic()
        self.ends: Counter[Outcome] = Counter()
        self.unroutable = ""
        if self._config.spool is None:
            directory.reach(self.bus, publishing=True)
            if self.bus.list_urls:  # each destination is registered there first
                directory.reach(self.bus)
        self._publisher = Publisher(self.bus, self._config)

    def __enter__(self) -> Self:
        self._publisher.start(require="one" if self._config.spool is None else None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the ends; tell those of the messages before an error."""
        self._publisher.stop(PUBLISH_STOP_S)
        if kind is not None and self.ends:
            self._tell()

    def send(self, destination: Destination, message: Message, options: Options) -> None:
        if self._pause_s:
            self._due_s = max(self._due_s + self._pause_s, time.monotonic() - 1)
            time.sleep(max(0.0, self._due_s - time.monotonic()))

        def ended(future: Future[Published]) -> None:
            self._ended(future.result(), destination)

        self._publisher.submit(destination, message, **options).add_done_callback(ended)

    def _ended(self, published: Published, destination: Destination) -> None:
        self.ends[published.outcome] += 1
        if published.outcome is Outcome.UNROUTABLE:
            self.unroutable = str(destination)
        if published.outcome not in SAFE and self.ends.total() - self._safe == 1:
            reason = f": {published.reason}" if published.reason else ""
            say(
                f"messagebus: message {published.message_id} to {destination}"
                f" {published.outcome.value}{reason}",
                err=True,
            )

    @property
    def _safe(self) -> int:
        return sum(self.ends[outcome] for outcome in SAFE)

    def _tell(self) -> None:
        told = ", ".join(f"{end.value} {n}" for end, n in sorted(self.ends.items(), key=str))
        say(f"published {self.ends.total()}: {told or 'nothing to publish'}", err=True)

    def report_ends(self) -> Exit:
        """Tell the outcomes and return the exit code."""
        ends = self.ends
        if self.unroutable and (near := directory.nearest(self.bus, self.unroutable)):
            say(f"messagebus: did you mean {near}?", err=True)
        self._tell()
        if ends.total() == self._safe:
            return Exit.DONE
        if self._safe:
            return Exit.PARTLY
        return Exit.ABSENT if ends.total() == ends[Outcome.UNROUTABLE] else Exit.FAILED


# Publish.
@click.command(short_help="Publish FILE to TOPIC and wait for the confirms.")
@click.argument("topic")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), default="-")
@click.option(
    "--lines", "form", flag_value="lines", help="One message a line, without its line end."
)
@click.option("--ndjson", "form", flag_value="ndjson", help="One JSON message a line; checked.")
@click.option(
    "--envelope",
    "form",
    flag_value="envelope",
    help="One envelope a line, as consume --ndjson prints it: with id, key, headers.",
)
@click.option("--key", default="", help="Key of all messages: they keep their order per broker.")
@click.option("--id", "message_id", default="", help="Id of the message, if it is a single one.")
@new_ids_option
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of all messages. Repeatable.",
)
@click.option("--type", "kind", default="", help="Type of all messages, for readers.")
@click.option(
    "--content-type",
    default="",
    help="Content type of all messages. Default: by the suffix of FILE, such as application/json;"
    ' "-" has none: name the type, or publish with --ndjson.',
)
@click.option(
    "--delay", "delay_s", type=Duration(), help="Deliver after this long: 90s, 15m, 2h, 7d."
)
@click.option(
    "--at", metavar="TIME", help="Deliver at this time: 2030-01-31T08:00 (local), ...T08:00+00:00."
)
@click.option("--ttl", "ttl_s", type=Duration(), help="Park a message that waits longer: 90s, 7d.")
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    help="Priority of all messages; RabbitMQ 4 delivers a higher one first.",
)
@rate_option
@click.option("--redundant", is_flag=True, help="Have two brokers confirm each message.")
@durability_option
def publish(
    topic: str,
    file: Path,
    form: str | None,
    key: str,
    message_id: str,
    new_ids: bool,
    headers: tuple[str, ...],
    kind: str,
    content_type: str,
    delay_s: float | None,
    at: str | None,
    ttl_s: float | None,
    priority: int | None,
    rate_per_s: float | None,
    redundant: bool,
    durability: str,
) -> int:
    """Publish FILE ("-": standard input) to TOPIC ("queue:NAME" for a queue) and wait for the confirms.

    Options replace the values of envelopes, and headers are added to theirs. Messages of envelopes go to
    TOPIC too, whatever destination the envelopes name.

    \b
    Example:
      messagebus publish orders order.json
      messagebus publish orders order.json --type order.placed --header shop=12 --delay 15m
      seq 1000 | messagebus publish orders - --lines --rate 50
      messagebus consume orders -s audit --ndjson | messagebus publish copies - --envelope
    """
    if message_id and form:
        raise click.UsageError(f"--id is for a single message, not for --{form}")
    if new_ids and form != "envelope":
        raise click.UsageError("--new-ids is for --envelope")
    if delay_s is not None and at is not None:
        raise click.UsageError("--delay or --at, not both")
    options: Options = {}
    if key:
        options["key"] = key
    if kind:
        options["type"] = kind
    if message_id:
        options["message_id"] = message_id
    if delay_s is not None:
        options["deliver_after_s"] = delay_s
    if at is not None:
        options["deliver_at"] = _moment(at)
    if ttl_s is not None:
        options["ttl_s"] = ttl_s
    if priority is not None:
        options["priority"] = priority
    if redundant:
        options["redundant"] = True
    more, destination = dict(map(_header, headers)), destination_of(topic, durability)
    with Sending(rate_per_s) as sending, Progress("published") as progress:
        try:
            with click.open_file(str(file), "rb") as source:
                size = file.stat().st_size if file.is_file() else 0
                for each in _messages(source, form, content_type, file):
                    send(sending, destination, each, options, more, new_ids)
                    share = source.tell() / size if size else None
                    progress.at(sending.ends.total(), share=share)
        except OSError as fault:
            wanted = "FILE is the path of a file, or - for standard input"
            raise click.UsageError(f"{file}: {fault.strerror}; {wanted}") from fault
    return sending.report_ends()


def send(
    sending: Sending,
    destination: Destination,
    enveloped: Enveloped,
    options: Options,
    headers: dict[str, str],
    new_ids: bool,
) -> None:
    """Publish a message. options, headers: go before its own."""
    message, said = enveloped.message, options
    if enveloped.delay_s and not options.keys() & {"deliver_after_s", "deliver_at"}:
        said = {**said, "deliver_after_s": enveloped.delay_s}
    if headers:
        said = {**said, "headers": {**message.headers, **headers}}
    if new_ids:
        said = {**said, "message_id": ""}
    sending.send(destination, message, said)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--header {text!r}: NAME=VALUE wanted")
    return name, value


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as fault:
        raise click.UsageError(f"--at {text!r}: a time wanted, such as 2030-01-31T08:00") from fault


def _type_of(file: Path, form: str | None) -> str:
    """Return the content type of messages; for a whole file by its suffix alone, the same everywhere."""
    if form:
        return "text/plain" if form == "lines" else "application/json"
    return mimetypes.MimeTypes().guess_type(file.name)[0] or BINARY


def _messages(
    source: IO[bytes], form: str | None, content_type: str, file: Path
) -> Iterator[Enveloped]:
    if form == "envelope":
        for each in envelopes_of(source):
            if content_type:
                each = replace(each, message=replace(each.message, content_type=content_type))
            yield each
        return
    content_type = content_type or _type_of(file, form)
    if form is None:
        body = source.read(BODY_BYTES_MAX + 1)
        yield Enveloped(Message(body=body, content_type=content_type), "", None)
        return
    for number, line in _lines(source, BODY_BYTES_MAX):
        if form == "ndjson":
            if not line:
                continue
            try:
                json.loads(line)
            except ValueError as fault:
                raise MessageInvalid(f"line {number}: not JSON: {fault}") from fault
        yield Enveloped(Message(body=line, content_type=content_type), "", None)


def _lines(source: IO[bytes], bytes_max: int) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(iter(lambda: source.readline(bytes_max + 2), b""), start=1):
        yield number, line.rstrip(b"\r\n")


def envelopes_of(source: IO[bytes]) -> Iterator[Enveloped]:
    """Read the envelopes of a file. Raises MessageInvalid with the number of the line."""
    for number, line in _lines(source, LINE_BYTES_MAX):
        if line:
            try:
                yield read_envelope(line)
            except MessageInvalid as fault:
                raise MessageInvalid(f"line {number}: {fault}") from fault


# Consume.
def layout_option(command: Any) -> Any:
    """Add --format: a line chosen by the user."""

    def parse_layout(_context: object, _option: object, text: str | None) -> Layout | None:
        try:
            return None if text is None else Layout(text)
        except ValueError as fault:
            raise click.BadParameter(str(fault)) from fault

    return click.option(
        "--format",
        "layout",
        callback=parse_layout,
        help="Print '{time} {broker} {key} {header[shop]} {json[a][b]} {body:.80}'.",
    )(command)


@click.command(short_help="Print the messages of TOPIC, one a line, and ack them.")
@click.argument("topic")
@subscription_option
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--idle-exit-s", type=NumberRange(min=0), help="Stop after this long without a message."
)
@click.option("--ndjson", is_flag=True, help="Print envelopes: id, key, headers, body as JSON.")
@layout_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@durability_option
def consume(
    topic: str,
    subscription: str,
    count: int | None,
    idle_exit_s: float | None,
    ndjson: bool,
    layout: Layout | None,
    yes: bool,
    durability: str,
) -> int:
    """Print the messages of TOPIC/NAME (or "queue:NAME"), one a line, from all brokers, and ack them.

    Other consumers of the subscription do not get the printed messages. On a terminal the command asks first
    if there are such consumers. `messagebus tail` shows messages and takes none.

    The command prints a line end within a message as \\n; --ndjson keeps every byte. A terminal shows
    characters that do not print as escapes. The command runs until it is stopped (code 143 by SIGTERM),
    unless --count or --idle-exit-s is given. It ends with code 6 when it can reach no broker. A topic or
    subscription that does not exist is created, as by every consumer, and stays: without another reader,
    delete it afterwards (messagebus subscriptions delete).

    \b
    Example:
      messagebus consume orders/billing --idle-exit-s 5 | sort | uniq -c
    """
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
    bus, config = bus_settings(), ConsumerConfig.from_env(os.environ)
    topic, subscription = topic_and_subscription(topic, subscription)
    source = destination_of(topic, durability)
    consumer = Consumer(bus, source, subscription=subscription, config=config)
    directory.reach(bus)
    if bus.list_urls and not bus.list_cache:
        directory.brokers(bus)  # a list that is none is told at once, with its address
    _tell_what_is_there(bus, str(as_source(source, subscription)), topic, ask=not yes)
    consumer.start(require="one")
    try:
        form: Callable[[Delivery], bytes]
        form = _as_shown if sys.stdout.isatty() else _as_line
        if layout is not None:
            form = _by(layout)
        ended = _print_all(consumer, _as_json if ndjson else form, count, idle_exit_s, stop)
    finally:
        consumer.stop(timeout_s=1)
    return ended


def _tell_what_is_there(bus: BusConfig, source: str, topic: str, *, ask: bool) -> None:
    """Tell of a source that will be created; ask before messages are taken from those who work on them."""
    if not bus.list_urls:
        return
    try:
        counted = directory.count_subscriptions(bus)
    except MessageBusError:  # no rights on it, or no agent: what follows will tell
        return
    there = [each.consumers for each in counted.counts if each.name == source]
    if not there and not counted.unanswered:  # a broker that does not answer may have it
        say(f"messagebus: {source} did not exist: it is created, on all brokers", err=True)
    others = max(there, default=0)
    if not others or not ask or not sys.stdout.isatty():
        return
    told = (
        f"{plural(others, 'consumer')} of {source} {'is' if others == 1 else 'are'} at work, and each"
        f" message that is printed here is taken from them (to look only: messagebus tail {topic})"
    )
    if not sys.stdin.isatty():
        say(f"messagebus: {told}", err=True)
    elif not click.confirm(f"{printable(told)}. Go on?", err=True):
        raise click.ClickException("nothing was taken")


def _print_all(
    consumer: Consumer,
    form: Callable[[Delivery], bytes],
    count: int | None,
    idle_exit_s: float | None,
    stop: list[int],
) -> Exit:
    """Print until one of the ends is reached, and return which: DONE or TERMINATED."""
    out, printed, last_s = sys.stdout.buffer, 0, time.monotonic()
    unacked: list[Delivery] = []

    def flush() -> None:
        """Print all lines before the acks: a message is acked only once it has been written out."""
        out.flush()
        ack_all(consumer, unacked)
        unacked.clear()

    ended = Exit.DONE
    while count is None or printed < count:
        if stop:
            ended = Exit.TERMINATED
            break
        delivery = consumer.receive_immediate()
        if delivery is None:
            flush()
            delivery = consumer.receive(RECEIVE_STEP_S)
        if delivery is not None:
            out.write(form(delivery) + b"\n")
            unacked.append(delivery)
            printed, last_s = printed + 1, time.monotonic()
        elif idle_exit_s is not None and time.monotonic() - last_s >= idle_exit_s:
            break
    flush()
    return ended


def ack_all(consumer: Consumer, deliveries: Iterable[Delivery]) -> None:
    """Ack deliveries."""
    for delivery in deliveries:
        consumer.ack(delivery)


def _as_line(delivery: Delivery) -> bytes:
    return delivery.body.replace(b"\r", b"\\r").replace(b"\n", b"\\n")


def _as_shown(delivery: Delivery) -> bytes:
    """Return the line of a message for a terminal, with nothing in it that moves the cursor."""
    return printable(delivery.body.decode(errors="backslashreplace")).encode()


def _as_json(delivery: Delivery) -> bytes:
    return write_envelope(delivered(delivery))


def _by(layout: Layout) -> Callable[[Delivery], bytes]:
    return lambda delivery: layout.line(delivered(delivery)).encode()
