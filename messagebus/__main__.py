"""The command `messagebus`: publish, consume, declare, brokers, subscriptions, worker, agent.

Settings come from the environment (MESSAGEBUS_BROKER, MESSAGEBUS_LIST_URL, MESSAGEBUS_USER,
MESSAGEBUS_PASSWORD or MESSAGEBUS_PASSWORD_FILE, ...: docs/howto/settings.md). Errors are one line on
standard error; exit codes are those of `messagebus.commands.exits`.
"""

from __future__ import annotations

import json
import logging
import mimetypes
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sized
from concurrent.futures import Future
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NoReturn

import click

from messagebus._io.amqp_wire import namesake
from messagebus.admin import directory
from messagebus.commands import parked
from messagebus.commands.exits import Exit, Program
from messagebus.commands.options import bus_settings
from messagebus.commands.parked import Duration
from messagebus.commands.worker import worker
from messagebus.config import ConsumerConfig, PublisherConfig
from messagebus.consumer import Consumer
from messagebus.destination import Destination, Queue, Subscription, parse_destination
from messagebus.errors import MessageInvalid
from messagebus.message import BINARY, BODY_BYTES_MAX, Delivery, Message, Options
from messagebus.publisher import Publisher
from messagebus.secret import Secret
from messagebus.stats import Durability, Outcome, Published
from messagebus.terminal import printable, say
from messagebus.topology import Wanted, with_options

__all__ = ["main"]

PUBLISH_STOP_S = 30.0
# Period at which a waiting consumer looks whether it is to stop.
RECEIVE_STEP_S = 0.2
TOKEN_SETTING = "MESSAGEBUS_TOKEN_FILE"
BROKER_SETTING = "MESSAGEBUS_BROKER"


def main() -> NoReturn:
    """Run a command; print every expected error as one line and return its exit code."""
    if told := namesake():
        say(f"messagebus: {told}", err=True)
    if BROKER_SETTING not in os.environ:
        cli.hint = f" ({BROKER_SETTING} is not set)"
    cli.main()


@click.group("messagebus", cls=Program)
@click.option("-v", "--verbose", is_flag=True, help="Tell what happens to links and lists.")
def cli(verbose: bool) -> None:
    """Publish to any RabbitMQ broker, consume from all of them.

    \b
    Example:
      messagebus declare orders orders/billing
      echo hello | messagebus publish orders -
      messagebus consume orders --subscription billing --count 1
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


_durability_option = click.option(
    "--durability",
    type=click.Choice([each.value for each in Durability]),
    default=Durability.FSYNC.value,
    show_default=True,
    help="What a confirmed message survives: a power-off, a kill of the broker, nothing.",
)


def _destination(text: str, durability: str) -> Destination:
    parsed = parse_destination(text)
    return replace(parsed, durability=Durability(durability))


# Publish.
@cli.command(short_help="Publish FILE to TOPIC and wait for the confirms.")
@click.argument("topic")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), default="-")
@click.option(
    "--lines", "form", flag_value="lines", help="One message a line, without its line end."
)
@click.option("--ndjson", "form", flag_value="ndjson", help="One JSON message a line; checked.")
@click.option("--key", default="", help="Key of all messages: they keep their order per broker.")
@click.option("--id", "message_id", default="", help="Id of the message; of a single one.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="May be said again.")
@click.option("--type", "kind", default="", help="Type of all messages, for readers.")
@click.option(
    "--content-type",
    default="",
    help="Of all messages. Default: FILE's by its suffix, such as application/json.",
)
@click.option(
    "--delay", "delay_s", type=Duration(), help="Deliver after so long: 90s, 15m, 2h, 7d."
)
@click.option(
    "--at", metavar="TIME", help="Deliver then: 2030-01-31T08:00 (local), ...T08:00+00:00."
)
@_durability_option
def publish(
    topic: str,
    file: Path,
    form: str | None,
    key: str,
    message_id: str,
    headers: tuple[str, ...],
    kind: str,
    content_type: str,
    delay_s: float | None,
    at: str | None,
    durability: str,
) -> int:
    """Publish FILE ("-": standard input) to TOPIC ("queue:NAME" for a queue) and wait for the confirms.

    \b
    Example:
      messagebus publish orders order.json
      messagebus publish orders order.json --type order.placed --header shop=12 --delay 15m
      seq 1000 | messagebus publish orders - --lines
    """
    options: Options = {"key": key, "type": kind, "headers": dict(map(_header, headers))}
    if message_id:
        if form:
            raise click.UsageError(f"--id is for a single message, not for --{form}")
        options["message_id"] = message_id
    if delay_s is not None and at is not None:
        raise click.UsageError("--delay or --at, not both")
    if delay_s is not None:
        options["deliver_after_s"] = delay_s
    if at is not None:
        options["deliver_at"] = _moment(at)
    ends: Counter[Outcome] = Counter()

    def ended(future: Future[Published]) -> None:
        published = future.result()
        ends[published.outcome] += 1
        if (
            published.outcome is not Outcome.CONFIRMED
            and ends.total() - ends[Outcome.CONFIRMED] == 1
        ):
            reason = f": {published.reason}" if published.reason else ""
            say(
                f"messagebus: message {published.message_id} to {topic}"
                f" {published.outcome.value}{reason}",
                err=True,
            )

    destination = _destination(topic, durability)
    bus, config = bus_settings(), PublisherConfig.from_env(os.environ)
    directory.reach(bus, publishing=True)
    publisher = Publisher(bus, config)
    publisher.start(require="one")
    try:
        with click.open_file(str(file), "rb") as source:
            for message in _messages(source, form, content_type or _type_of(file, form)):
                publisher.submit(destination, message, **options).add_done_callback(ended)
    except OSError as fault:
        raise click.UsageError(f"{file}: {fault.strerror}") from fault
    finally:
        publisher.stop(PUBLISH_STOP_S)
    if ends[Outcome.UNROUTABLE] and (near := directory.nearest(bus, topic)):
        say(f"messagebus: did you mean {near}?", err=True)
    told = ", ".join(f"{outcome.value} {count}" for outcome, count in sorted(ends.items(), key=str))
    say(f"published {ends.total()}: {told or 'nothing to publish'}", err=True)
    if ends.total() == ends[Outcome.CONFIRMED]:
        return Exit.DONE
    if ends[Outcome.CONFIRMED]:
        return Exit.PARTLY
    return Exit.ABSENT if ends.total() == ends[Outcome.UNROUTABLE] else Exit.FAILED


def _header(said: str) -> tuple[str, str]:
    name, equals, value = said.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--header {said!r}: NAME=VALUE wanted")
    return name, value


def _moment(said: str) -> datetime:
    try:
        return datetime.fromisoformat(said).astimezone()
    except (ValueError, OverflowError) as fault:
        raise click.UsageError(f"--at {said!r}: a time wanted, such as 2030-01-31T08:00") from fault


def _type_of(file: Path, form: str | None) -> str:
    """Return the content type of messages; for a whole file by its suffix alone, the same everywhere."""
    if form:
        return "text/plain" if form == "lines" else "application/json"
    return mimetypes.MimeTypes().guess_type(file.name)[0] or BINARY


def _messages(source: IO[bytes], form: str | None, content_type: str) -> Iterator[Message]:
    if form is None:
        yield Message(body=source.read(BODY_BYTES_MAX + 1), content_type=content_type)
        return
    for number, line in enumerate(iter(lambda: source.readline(BODY_BYTES_MAX + 2), b""), start=1):
        body = line.rstrip(b"\r\n")
        if form == "lines":
            yield Message(body=body, content_type=content_type)
        elif body:
            try:
                json.loads(body)
            except ValueError as fault:
                raise MessageInvalid(f"line {number}: not JSON: {fault}") from fault
            yield Message(body=body, content_type=content_type)


# Consume.
@cli.command(short_help="Print the messages of TOPIC, one a line, and ack them.")
@click.argument("topic")
@click.option(
    "--subscription", "-s", default="", help="Name of the subscription; a queue has none."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after that many messages.")
@click.option(
    "--idle-exit-s", type=click.FloatRange(min=0), help="Stop when that long nothing came."
)
@click.option("--ndjson", is_flag=True, help="Print id, broker, key, headers and body as JSON.")
@_durability_option
def consume(
    topic: str,
    subscription: str,
    count: int | None,
    idle_exit_s: float | None,
    ndjson: bool,
    durability: str,
) -> int:
    """Print the messages of TOPIC ("queue:NAME" for a queue), one a line, from all brokers.

    They are acked once they are printed. A line end within a message is printed as \\n; --ndjson keeps
    every byte. On a terminal characters that do not print are shown by their escapes. Ends with code 6
    when no broker can be reached; else runs until it is stopped, unless --count or --idle-exit-s say
    otherwise. A topic or subscription that does not exist is created, as by every consumer, and stays:
    without another reader, delete it afterwards (messagebus subscriptions delete).

    \b
    Example:
      messagebus consume orders --subscription billing --idle-exit-s 5 | sort | uniq -c
    """
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
    config = ConsumerConfig.from_env(os.environ)
    source = _destination(topic, durability)
    bus = bus_settings()
    consumer = Consumer(bus, source, subscription=subscription, config=config)
    directory.reach(bus)
    consumer.start(require="one")
    try:
        as_text = _as_shown if sys.stdout.isatty() else _as_line
        _print_all(consumer, _as_json if ndjson else as_text, count, idle_exit_s, stop)
    finally:
        consumer.stop(timeout_s=1)
    return 0


def _print_all(
    consumer: Consumer, form: Any, count: int | None, idle_exit_s: float | None, stop: list[int]
) -> None:
    out, printed, last_s = sys.stdout.buffer, 0, time.monotonic()
    unacked: list[Delivery] = []

    def flush() -> None:
        """Print all lines before the acks: a message is acked only once it has been written out."""
        out.flush()
        for delivery in unacked:
            consumer.ack(delivery)
        unacked.clear()

    while not stop and (count is None or printed < count):
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


def _as_line(delivery: Delivery) -> bytes:
    return delivery.body.replace(b"\r", b"\\r").replace(b"\n", b"\\n")


def _as_shown(delivery: Delivery) -> bytes:
    """Return the line of a message for a terminal, with nothing in it that moves the cursor."""
    return printable(delivery.body.decode(errors="backslashreplace")).encode()


def _as_json(delivery: Delivery) -> bytes:
    """Return the message as JSON with everything that does not print escaped, for pipes as for terminals."""
    message = delivery.message
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_hex": message.body.hex()}
    told = {
        "id": message.message_id,
        "broker": delivery.broker,
        "redelivered": delivery.redelivered,
        "key": message.key,
        "content_type": message.content_type,
        "headers": dict(message.headers),
    }
    line = json.dumps(told | body, ensure_ascii=False, default=str)
    if line.isprintable():
        return line.encode()
    # C1 controls and lone surrogates: JSON itself lets them through.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line).encode()


# Declare, brokers.
@cli.command(short_help="Make topics, subscriptions and queues exist.")
@click.argument("wanted", nargs=-1, required=True)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    default=directory.DECLARE_TIMEOUT_S,
    show_default=True,
    help="How long to go on asking until all brokers have it.",
)
@click.option(
    "--delivery-limit",
    type=click.IntRange(min=1),
    help="Of subscriptions and queues: what comes back unanswered more often is parked.",
)
@_durability_option
def declare(
    wanted: tuple[str, ...], timeout_s: float, delivery_limit: int | None, durability: str
) -> int:
    """Make topics, subscriptions and queues exist on every broker, settled.

    An existing one with another durability, or delivery limit, is an error that shows both.

    \b
    Example:
      messagebus declare orders orders/billing queue:jobs
      messagebus declare --durability page-cache clicks clicks/counted
    """
    level = Durability(durability)
    options = {} if level is Durability.FSYNC else {"durability": level.value}
    asked = [_limited(with_options(each, options), delivery_limit) for each in wanted]
    done = directory.declare(bus_settings(), asked, timeout_s=timeout_s)
    later = f"; later, before they take publishes: {', '.join(done.later)}" if done.later else ""
    say(f"declared {' '.join(wanted)} on {', '.join(done.held)}{later}")
    return 0


def _limited(wanted: Wanted, delivery_limit: int | None) -> Wanted:
    if delivery_limit is None or not isinstance(wanted, Subscription | Queue):
        return wanted
    return replace(wanted, delivery_limit=delivery_limit)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def brokers(as_json: bool) -> int:
    """Print the brokers that consumers consume from.

    \b
    Example:
      messagebus brokers --json
    """
    bus = bus_settings()
    directory.reach(bus)
    found = directory.brokers(bus)
    if as_json:
        begin = "https://" if bus.tls else "http://"
        rows = [
            {"broker": e.broker.name, "draining": e.draining, "agent": begin + e.agent_address}
            for e in found
        ]
        told = {"cluster": found.cluster, "generation": found.generation, "brokers": rows}
        click.echo(json.dumps(told, indent=2))
        return 0
    say(f"cluster {found.cluster or '-'}  generation {found.generation}")
    for entry in found:
        say(f"{entry.broker.name:<24}{'draining' if entry.draining else 'consumed from'}")
    return 0


# Subscriptions.
@cli.group(short_help="List, delete or purge subscriptions and queues.")
def subscriptions() -> None:
    """List, delete or purge subscriptions and queues, on all brokers.

    \b
    Example:
      messagebus subscriptions list
      messagebus subscriptions delete orders/billing --token-file /etc/messagebus/token
    """


_as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
_token_option = click.option(
    "--token-file",
    envvar=TOKEN_SETTING,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the operators' token; {TOKEN_SETTING}.",
)
_names_argument = click.argument("names", nargs=-1, required=True)


@subscriptions.command("list")
@_as_json_option
def list_subscriptions(as_json: bool) -> int:
    """Print the message counts of subscriptions and queues, by broker.

    READY messages wait, UNACKED are delivered and not answered ("?": the broker does not say; may be
    some seconds old). Exit code 3 when a broker does not answer.

    \b
    Example:
      messagebus subscriptions list --json
    """
    found = directory.count_subscriptions(bus_settings())
    if as_json:
        rows = [asdict(each) for each in found.counts]
        told = {"subscriptions": rows, "unanswered": dict(found.unanswered)}
        click.echo(json.dumps(told, indent=2))
    else:
        widths = [
            max([len(title), *(len(getattr(each, title.lower())) for each in found.counts)])
            for title in ("NAME", "BROKER")
        ]
        say(_row(widths, "NAME", "BROKER", "READY", "UNACKED", "CONSUMERS"))
        for each in found.counts:
            unacked = "?" if each.unacked is None else each.unacked
            say(_row(widths, each.name, each.broker, each.ready, unacked, each.consumers))
    return _tell_unanswered(found.unanswered, found.answered)


def _row(widths: list[int], name: str, broker: str, *figures: object) -> str:
    return f"{name:<{widths[0]}}  {broker:<{widths[1]}}" + "".join(f"{f!s:>11}" for f in figures)


@subscriptions.command("delete", short_help="Delete NAMES on all brokers, with their messages.")
@_names_argument
@_token_option
@_yes_option
@_as_json_option
def delete_subscriptions(names: tuple[str, ...], token_file: Path, yes: bool, as_json: bool) -> int:
    """Delete NAMES (TOPIC/SUBSCRIPTION or queue:NAME) on all brokers, with their messages.

    A broker that is down deletes them when it is back, before it takes publishes; it is named, and the
    exit code is 3. So is one whose agent does not answer: ask again.

    \b
    Example:
      messagebus subscriptions delete orders/billing --token-file /etc/messagebus/token --yes
    """
    token = _token(token_file)
    _confirm(f"Delete {', '.join(names)} on all brokers, with all that waits in them?", yes)
    done = directory.delete_subscriptions(bus_settings(), names, token=token)
    later = dict.fromkeys(done.later, "deletes it when it is back")
    if as_json:
        told = {"held": done.held, "later": done.later, "missing": dict(done.missing)}
        click.echo(json.dumps({"complete": done.complete, **told}, indent=2))
    elif done.held:
        say(f"deleted {' '.join(names)} on {', '.join(done.held)}")
    return _tell_unanswered(later | dict(done.missing), done.held)


@subscriptions.command("purge", short_help="Drop what waits in NAMES now, on all brokers.")
@_names_argument
@_token_option
@_yes_option
@_as_json_option
def purge_subscriptions(names: tuple[str, ...], token_file: Path, yes: bool, as_json: bool) -> int:
    """Drop the waiting messages of NAMES, on all brokers; those delivered and not answered stay.

    A broker that does not answer is named, keeps its messages, and the exit code is 3.

    \b
    Example:
      messagebus subscriptions purge orders/billing queue:jobs --token-file /etc/messagebus/token --yes
    """
    token = _token(token_file)
    _confirm(f"Drop all that waits in {', '.join(names)} on all brokers?", yes)
    done = directory.purge_subscriptions(bus_settings(), names, token=token)
    if as_json:
        told = {"dropped": {b: dict(each) for b, each in done.dropped.items()}}
        click.echo(json.dumps({**told, "unanswered": dict(done.unanswered)}, indent=2))
    else:
        for broker, counts in sorted(done.dropped.items()):
            for name, count in counts.items():
                say(f"dropped {count} of {name} on {broker}")
    unknown = [name for name in names if not any(name in each for each in done.dropped.values())]
    if unknown and done.dropped:
        say(f"messagebus: no broker has {', '.join(unknown)}", err=True)
    code = _tell_unanswered(done.unanswered, done.dropped)
    if unknown and code == Exit.DONE:
        return Exit.ABSENT if len(unknown) == len(names) else Exit.PARTLY
    return code


def _token(path: Path) -> Secret:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise click.UsageError(f"--token-file {path}: {fault}") from fault
    if not text:
        raise click.UsageError(f"--token-file {path}: empty")
    return Secret(text)


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to be asked: --yes")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was done")


def _tell_unanswered(unanswered: Mapping[str, str], answered: Sized) -> int:
    for broker, why in sorted(unanswered.items()):
        say(f"messagebus: {broker} did not answer: {' '.join(why.split())}", err=True)
    if unanswered:
        return Exit.PARTLY if answered else Exit.SILENT
    return Exit.DONE


cli.add_command(parked.group)
cli.add_command(worker)


# Agent.
@cli.command(short_help="Serve the list, topology and health of one broker.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File with its settings, in TOML.",
)
def agent(config: Path) -> int:
    """Serve the list, own the topology and tell the health of the broker on this node.

    \b
    Example:
      messagebus agent --config /etc/messagebus/agent.toml
    """
    try:
        from messagebus.agent import run
    except ImportError as fault:
        raise click.UsageError(
            f"the agent needs more packages ({fault.name}): pip install messagebus-rabbitmq[agent]"
        ) from fault
    return run(config)


if __name__ == "__main__":
    main()
