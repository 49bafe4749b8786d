"""The commands of this kit."""

from __future__ import annotations

from pathlib import Path

import click

from bench.audit import audit
from bench.audit_report import print_audit
from bench.clients.java import fetch
from bench.commands import COMMANDS
from bench.demo.cli import demo
from bench.errors import CODES, DoesNotHold
from bench.figures.cli import figures, readme
from bench.figures.turns import profile
from bench.harness.worker import worker
from bench.rows import read_events
from bench.trials.handlers import handlers
from bench.trials.once import once
from bench.trials.soak import soak
from messagebus.commands.exits import Program
from messagebus.recording.events import FAULTS
from messagebus.recording.manifest import read_manifest


@click.group("bench", cls=Program, codes=CODES)
def bench() -> None:
    """Measure load and latency, audit runs, and play the demonstration of the whole way."""


for command in (demo, figures, profile, soak, handlers, once, readme, fetch, worker, *COMMANDS):
    bench.add_command(command)


@bench.command(
    "audit",
    epilog="Example: python -m bench audit out/demo-20260101-120000",
    short_help="Judge a recorded run: lost, altered, doubled, and why.",
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(list(FAULTS)),
    metavar="NAME",
    help="Of a fault that does not count, as docs/MEASURING.md has them; several.",
)
def audit_command(folder: Path, allow: tuple[str, ...]) -> None:
    """Judge the recorded run in FOLDER: lost, altered, doubled and why. Exit 0 only if it holds."""
    manifest = read_manifest(folder)
    result = audit(manifest, read_events(folder, manifest), allow)
    print_audit(result, manifest)
    if not result.holds:
        raise DoesNotHold(
            f"the audit of {manifest.run_id} does not hold: {'; '.join(result.faults)}"
        )


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return bench.run(argv, prog_name="python -m bench")
