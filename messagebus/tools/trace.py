"""The command `messagebus trace`: where one message is, and how that is known."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import click

from messagebus.commands.exits import Exit
from messagebus.commands.options import bus_settings, iso
from messagebus.config import with_agents
from messagebus.observing.trace import Trace, rows_of, trace
from messagebus.terminal import escaped, say
from messagebus.tools.find import evidence_of
from messagebus.tools.top import observed

TEXT_CHARS_MAX = 300


@click.command("trace", short_help="Find a message, with the evidence for it.")
@click.argument("message_id", metavar="ID")
@click.option("--topic", default="", help="Topic or queue that it was published to.")
@click.option("--published-at", help="Time of the publish: 2026-05-01T12:00:00+02:00, or 14:05.")
@click.option(
    "--recording",
    type=click.Path(path_type=Path),
    help="Folder with rows of a recorder to search as well.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def trace_command(
    message_id: str, topic: str, published_at: str | None, recording: Path | None, as_json: bool
) -> int:
    """Find the message ID: parked, finished, or the places where it might still wait.

    ID: the message's id, or its beginning. The command reads parking queues. It never reads queues in use,
    because that would count as a delivery: it concludes from the agents' counts, and each line names its
    source. Without --published-at or a recording, any queue with waiting messages may have the message. Exit
    code 4: nothing is known of it; 3: a place could not be inspected.

    \b
    Example:
      messagebus trace 5f0c2a9be1d04773a1b20000000000c4
      messagebus trace 5f0c2a9b --topic orders --published-at 14:05 --json
    """
    bus = with_agents(bus_settings())
    published_ms = None if published_at is None else _time_ms(published_at)
    with ThreadPoolExecutor(1) as beside:
        observing = beside.submit(lambda: asyncio.run(observed(bus)))
        try:
            evidence = evidence_of(
                bus,
                message_id,
                recording=recording or "",
                topic=topic,
                published_ms=published_ms,
            )
        except ValueError as fault:
            raise click.UsageError(f"ID: {fault}") from fault
        told = trace(evidence, observing.result())
    _print(told, as_json)
    verdicts = {line.verdict for line in told.lines}
    if verdicts <= {"id", "absent", "?"}:
        return Exit.ABSENT if "?" not in verdicts else Exit.PARTLY
    return Exit.PARTLY if "?" in verdicts else Exit.DONE


def _print(trace: Trace, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"answer": trace.answer, "lines": list(rows_of(trace))}))
        return
    say(escaped(trace.answer, TEXT_CHARS_MAX * 4))
    for each in trace.lines:
        place = " on ".join(filter(None, (each.about, each.broker)))
        at = f" at {iso(each.at_ms)}" if each.at_ms else ""
        said = f"{each.verdict}: {f'{place}: ' if place else ''}{each.text}{at}"
        say(f"  {escaped(said, TEXT_CHARS_MAX)}  ({each.known})")


def _time_ms(text: str) -> int:
    """Read a time, the last one where there is no date, of this host's zone where there is none."""
    now, is_of_day = datetime.now(), ":" in text[:3]
    try:
        said = datetime.fromisoformat(f"{now:%Y-%m-%d}T{text}" if is_of_day else text)
        if is_of_day and said.timestamp() > now.timestamp():  # 23:55, just after midnight
            said -= timedelta(days=1)
        return int(said.timestamp() * 1_000)
    except (ValueError, OverflowError, OSError) as fault:
        raise click.UsageError(f"--published-at {text!r}: {fault}") from fault
