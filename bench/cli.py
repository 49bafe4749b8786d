"""The commands of this kit."""

from __future__ import annotations

import click

from bench.errors import CODES
from messagebus.commands.exits import Program

# Command -> where it is, and its line in the help. Load processes are commands, and import no charts.
LATER = {
    "audit": ("bench.commands:audit", "Judge a recorded run: lost, altered, doubled, and why."),
    "compare": ("bench.commands:compare", "Run two profiles by turns, and compare them."),
    "demo": ("bench.demo.cli:demo", "Play the whole way while brokers come, go and die."),
    "fetch": ("bench.clients.packages:fetch", "Fetch a program through Maven or Go."),
    "figures": ("bench.figures.cli:figures", "Measure the figures of the project."),
    "knee": ("bench.commands:knee", "Find the highest rate with latencies in bounds."),
    "overhead": ("bench.commands:overhead", "Measure what the harness costs a message."),
    "readme": ("bench.figures.cli:readme", "Write the newest figures into the pages."),
    "relay": ("bench.harness.remote:relay", "One load process on another host."),
    "remote": ("bench.harness.remote:remote", "The other end of relay."),
    "report": ("bench.commands:report", "Make the report of a run again from its files."),
    "run": ("bench.commands:run", "Measure what PROFILE says."),
    "worker": ("bench.harness.worker:worker", "One load process of a measured run."),
}


@click.group("bench", cls=Program, codes=CODES, later=LATER)
def bench() -> None:
    """Measure load and latency, audit runs, and play the demonstration of the whole way."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return bench.run(argv, prog_name="python -m bench")
