"""`messagebus parked`: list, show, redrive and purge the parked messages of all brokers."""

from __future__ import annotations

import codecs
import functools
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import click

from messagebus.admin import parked
from messagebus.admin.parked import (
    ParkedCount,
    ParkedCounts,
    ParkedFilter,
    ParkedMessage,
    ParkedMessages,
    ParkedMoved,
    ParkedProgress,
)
from messagebus.clock import MS_PER_S, wall_ms
from messagebus.commands.exits import Exit, code_of
from messagebus.commands.options import Duration, NumberRange, bus_settings, iso
from messagebus.envelope import tagged
from messagebus.errors import one_line, remedy_of
from messagebus.message import BODY_BYTES_MAX
from messagebus.terminal import Progress, escaped, plural, say
from messagebus.tools.top import table

TEXT_CHARS_MAX, BODY_CHARS_MAX = 300, 200
REASONS_SHOWN, HEADERS_SHOWN = 3, 20


@click.group("parked", short_help="List, read, redrive or drop parked messages.")
def group() -> None:
    """List, read, put back or drop parked messages, on all brokers.

    \b
    Example:
      messagebus parked list
      messagebus parked show orders/billing --reason timeout --limit 5
      messagebus parked redrive orders/billing --older-than 1h --rate 50
    """


def _filters(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that make a ParkedFilter, which the command gets as `where`."""
    options = (
        click.option(
            "--older-than",
            "older_than_s",
            type=Duration(),
            help="Only messages that were parked longer ago: 90s, 7d.",
        ),
        click.option(
            "--newer-than",
            "newer_than_s",
            type=Duration(),
            help="Only messages that were parked since then: 90s, 7d.",
        ),
        click.option(
            "--reason", help="Only messages with this text in reason or exception, in any case."
        ),
        click.option("--key", help="Only messages with exactly this key."),
        click.option(
            "--id", "message_id", help="Only messages with this id; ID* for all whose id begins so."
        ),
        click.option(
            "--match",
            metavar="PATTERN",
            help="A regular expression in id, key, reason, exception, headers or body.",
        ),
        click.option(
            "--broker", "brokers", multiple=True, help="Only on this HOST:PORT; repeatable."
        ),
    )

    @functools.wraps(command)  # with the options that it has already
    def taking_options(**values: Any) -> int:
        names = ("older_than_s", "newer_than_s", "reason", "key", "match", "brokers", "message_id")
        where = ParkedFilter(**{name: values.pop(name) for name in names})
        return command(where=where, **values)

    made: Callable[..., int] = taking_options
    for option in reversed(options):
        made = option(made)
    return made


_some_names = click.argument("names", nargs=-1)
_names = click.argument("names", nargs=-1, required=True)
_as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only count the messages that match."
)
_limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="At most this many messages."
)


# List, show.
@group.command("list")
@_some_names
@_filters
@_as_json_option
def list_parked(names: tuple[str, ...], where: ParkedFilter, as_json: bool) -> int:
    """Print how many messages of NAMES (default: all) are parked.

    NAMES: TOPIC/SUBSCRIPTION, queue:NAME, or undelivered for delayed messages that found no queue.

    One line for each parking queue that has some: how many, how long ago the oldest was parked ("?": it
    does not say), and the most frequent reasons, with the type of the exception. Exit code 3 when a broker
    does not answer.

    \b
    Example:
      messagebus parked list --older-than 1d
    """
    found = parked.count_parked(bus_settings(), names, where=where)
    if as_json:
        _print_json({"parked": [_count_row(each) for each in found.counts]}, found.faults)
    elif found.counts:
        _print_counts(found)
    else:
        say(_none_parked(found), err=True)
    return _tell(found)


def _none_parked(found: ParkedCounts) -> str:
    """Say that nothing is parked, as far as that is known."""
    if not found.faults:
        return "nothing is parked"
    if not found.looked:
        return "whether messages are parked is not known: no broker was read"
    return f"nothing is parked on the {plural(len(found.looked), 'broker')} that answered"


def _print_counts(counts: ParkedCounts) -> None:
    now_ms = wall_ms()
    rows = [
        (each.name, each.broker, _many(each), _age(each.oldest_ms, now_ms))
        for each in counts.counts
    ]
    lines = table(("NAME", "BROKER", "COUNT", "OLDEST"), rows, texts=2)
    for line, reasons in zip(lines, ("REASONS", *map(_reasons, counts.counts)), strict=True):
        say(f"{line}  {reasons}")


def _many(count: ParkedCount) -> str:
    return f"{count.count}+{count.unseen}?" if count.unseen else str(count.count)


def _reasons(count: ParkedCount) -> str:
    told = [f"{escaped(why, 60)}: {n}" for why, n in list(count.reasons.items())[:REASONS_SHOWN]]
    more = sum(count.reasons.values()) - sum(list(count.reasons.values())[:REASONS_SHOWN])
    return "; ".join([*told, *([f"others: {more}"] if more else [])])


def _count_row(count: ParkedCount) -> dict[str, Any]:
    return {
        "name": count.name,
        "broker": count.broker,
        "count": count.count,
        "oldest": iso(count.oldest_ms),
        "reasons": dict(count.reasons),
        "unseen": count.unseen,
    }


@group.command("show", short_help="Print parked messages of NAMES; they stay.")
@_names
@_filters
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=parked.READ_LIMIT,
    show_default=True,
    help="At most this many messages.",
)
@_as_json_option
def show_parked(names: tuple[str, ...], where: ParkedFilter, limit: int, as_json: bool) -> int:
    """Print parked messages of NAMES, and leave them where they are, in order.

    The command shows the first 200 characters of a body (--json: 4,096 bytes), with escapes for characters
    that do not print.

    \b
    Example:
      messagebus parked show orders/billing --match 'customer.*42' --json
    """
    found = parked.read_parked(bus_settings(), names, where=where, count_max=limit)
    if as_json:
        _print_json({"messages": [_message_row(each) for each in found.messages]}, found.faults)
    else:
        for each in found.messages:
            click.echo("\n".join(_lines(each)) + "\n")
        say(f"{len(found.messages)} shown", err=True)
    return _tell(found)


def _lines(message: ParkedMessage) -> list[str]:
    def short(text: str) -> str:
        return escaped(text, TEXT_CHARS_MAX)

    attempts = "?" if message.attempts is None else str(message.attempts)
    lines = [
        f"{short(message.message_id) or '(no id)'}",
        f"  in         {message.name} on {message.broker}",
        f"  reason     {short(message.reason)}",
        f"  exception  {short(message.exception)}" if message.exception else "",
        f"  attempts   {attempts}"
        + (f", redriven {plural(message.redriven, 'time')} before" if message.redriven else ""),
        f"  first      {iso(message.first_ms) or '?'}",
        f"  parked     {iso(message.parked_ms) or '?'}",
        f"  key        {short(message.key)}" if message.key else "",
    ]
    headers = list(message.headers.items())
    lines += [f"  header     {short(f'{n}: {value}')}" for n, value in headers[:HEADERS_SHOWN]]
    if len(headers) > HEADERS_SHOWN:
        lines.append(f"  header     and {len(headers) - HEADERS_SHOWN} more")
    lines.append(
        f"  body       {short(message.content_type)} {plural(message.body_bytes, 'byte')}: {_body(message)}"
    )
    return [line.rstrip() for line in lines if line]


def _body(message: ParkedMessage) -> str:
    cut = message.body_bytes > len(message.body)
    if (text := _text(message)) is None:
        text = message.body[: BODY_CHARS_MAX // 2].hex()
        return f"hex {text}" + ("..." if message.body_bytes > BODY_CHARS_MAX // 2 else "")
    shown = escaped(text, BODY_CHARS_MAX)
    return f"{shown}..." if cut and not shown.endswith("...") else shown


def _text(message: ParkedMessage) -> str | None:
    """Return a body as text, without a character that its end cuts in half; None for bytes that are none."""
    is_whole = message.body_bytes <= len(message.body)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(message.body, is_whole)
    except UnicodeDecodeError:
        return None


def _message_row(message: ParkedMessage) -> dict[str, Any]:
    text = _text(message)
    body = {"body_hex": message.body.hex()} if text is None else {"body": text}
    return {
        "id": message.message_id,
        "name": message.name,
        "broker": message.broker,
        "key": message.key,
        "reason": message.reason,
        "exception": message.exception,
        "attempts": message.attempts,
        "first": iso(message.first_ms),
        "parked": iso(message.parked_ms),
        "redriven": message.redriven,
        "headers": {name: tagged(value) for name, value in message.headers.items()},
        "content_type": message.content_type,
        "body_bytes": message.body_bytes,
        **body,
    }


# Redrive, purge.
@group.command("redrive", short_help="Redrive parked messages of NAMES into their queue.")
@_names
@_filters
@_limit_option
@click.option(
    "--rate",
    type=NumberRange(min=0, min_open=True),
    default=parked.REDRIVE_RATE_PER_S,
    show_default=True,
    help="At most this many messages a second.",
)
@click.option(
    "--body",
    "file",
    type=click.File("rb"),
    help="Put back with the bytes of this file (-: standard input) as body; with --id alone.",
)
@_dry_run_option
@_yes_option
@_as_json_option
def redrive_parked(
    names: tuple[str, ...],
    where: ParkedFilter,
    limit: int | None,
    rate: float,
    file: BinaryIO | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Put parked messages of NAMES back into their own queue, on the broker where they are.

    Id, headers and key stay, and attempts start at 1 again. With --body one message is put back with
    another body, to be handled by its own subscription alone. The command may be interrupted and run again:
    no message is lost, and at most one is put back twice. Messages that are parked meanwhile stay parked.

    \b
    Example:
      messagebus parked redrive orders/billing --reason 'delivery limit' --rate 20 --yes
      messagebus parked redrive orders/billing --id order-17 --body corrected.json --yes
    """
    body = None if file is None else file.read(BODY_BYTES_MAX + 1)
    if body is not None:
        parked.check_body(body, where)

    def redrive(tell: Callable[[ParkedProgress], None], most: int | None) -> ParkedMoved:
        return parked.redrive_parked(
            bus_settings(),
            names,
            where=where,
            count_max=most,
            rate_per_s=rate,
            body=body,
            on_progress=tell,
        )

    return _move(names, where, limit, redrive, ("redrive", "redriven"), dry_run, yes, as_json)


@group.command("purge")
@_names
@_filters
@_limit_option
@_dry_run_option
@_yes_option
@_as_json_option
def purge_parked(
    names: tuple[str, ...],
    where: ParkedFilter,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete parked messages of NAMES permanently.

    \b
    Example:
      messagebus parked purge orders/billing --older-than 30d --dry-run
    """

    def purge(tell: Callable[[ParkedProgress], None], most: int | None) -> ParkedMoved:
        return parked.purge_parked(
            bus_settings(), names, where=where, count_max=most, on_progress=tell
        )

    return _move(names, where, limit, purge, ("drop", "dropped"), dry_run, yes, as_json)


def _move(
    names: tuple[str, ...],
    where: ParkedFilter,
    limit: int | None,
    move: Callable[[Callable[[ParkedProgress], None], int | None], ParkedMoved],
    verb: tuple[str, str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    if not yes and not dry_run and not sys.stdin.isatty():
        raise click.UsageError("no terminal to ask on: use --yes or --dry-run")
    expected = None
    if dry_run or not yes or sys.stderr.isatty():
        found = parked.count_parked(bus_settings(), names, where=where)
        expected = sum(each.count for each in found.counts)
        expected = expected if limit is None else min(expected, limit)
        if dry_run:
            return _tell_dry_run(found, expected, verb[0], as_json)
    if not yes and not click.confirm(
        f"{verb[0].capitalize()} {plural(expected or 0, 'message')} of {', '.join(names)}?",
        err=True,
    ):
        raise click.ClickException("nothing was done")
    progress = Progress(verb[1], total=expected)

    def tell(moved: ParkedProgress) -> None:
        progress.at(moved.total, f"{moved.name} on {moved.broker}")

    try:
        with progress:
            done = move(tell, limit if yes else expected)  # no more than somebody agreed to
    except KeyboardInterrupt:
        say(f"messagebus: interrupted: {verb[1]} {progress.done}", err=True)
        return Exit.INTERRUPTED
    code = _tell_moved(done, verb[1], as_json)
    if code == Exit.DONE and where.message_id and not done.total:
        say(f"messagebus: no parked message has the id {escaped(where.message_id, 200)}", err=True)
        return Exit.ABSENT
    return code


def _tell_dry_run(counts: ParkedCounts, expected: int, verb: str, as_json: bool) -> int:
    if as_json:
        rows = [_count_row(each) for each in counts.counts]
        _print_json({f"would_{verb}": expected, "parked": rows}, counts.faults)
    else:
        for each in counts.counts:
            say(f"{_many(each)} of {each.name} on {each.broker}: {_reasons(each)}")
        say(f"would {verb} {expected}")
    return _tell(counts)


def _tell_moved(done: ParkedMoved, verb: str, as_json: bool) -> int:
    if as_json:
        rows = [
            {"name": name, "broker": broker, "count": count}
            for (name, broker), count in sorted(done.moved.items())
        ]
        _print_json({verb: rows, "total": done.total}, done.faults)
    else:
        for (name, broker), count in sorted(done.moved.items()):
            say(f"{verb} {count} of {name} on {broker}")
        say(f"{verb} {done.total}")
    return _tell(done)


# Words.
def _print_json(values: Mapping[str, Any], faults: Mapping[str, str]) -> None:
    click.echo(json.dumps({**values, "faults": dict(faults)}, indent=2))


def _tell(answer: ParkedCounts | ParkedMessages | ParkedMoved) -> int:
    for where, why in sorted(answer.faults.items()):
        place = remedy_of(answer.causes[where]) if where in answer.causes else ""
        section = f" [{place}]" if place else ""
        say(f"messagebus: {where}: {escaped(one_line(why), 400)}{section}", err=True)
    if not answer.faults:
        return Exit.DONE
    if answer.looked:
        return Exit.PARTLY
    if not answer.causes:
        return Exit.ABSENT
    codes = {code_of(each) for each in answer.causes.values()}
    return codes.pop() if len(codes) == 1 else Exit.FAILED


def _age(ms: int | None, now_ms: int) -> str:
    if ms is None:
        return "?"
    seconds = max(0, now_ms - ms) // MS_PER_S
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
