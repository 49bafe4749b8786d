"""The commands of this kit, their errors in one line each, their exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bench.audit import audit
from bench.audit_tables import print_audit
from bench.demo.cli import demo
from bench.errors import BenchError
from bench.figures.cli import figures, readme
from bench.handlers_trial import handlers
from bench.load import load
from bench.manifest import Manifest
from bench.maven import fetch
from bench.profiling import profile
from bench.rows import read_events
from bench.run.cli import COMMANDS
from bench.run.worker import worker
from bench.soak import soak
from messagebus.errors import ConfigError, MessageBusError
from messagebus.events import FAULTS

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Load, latency, audits, and the demonstration of the whole way."""


for command in (load, demo, figures, profile, soak, handlers, readme, fetch, worker, *COMMANDS):
    bench.add_command(command)


@bench.command("audit", epilog="Example: python -m bench audit out/demo-20260101-120000")
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
    manifest = Manifest.load(folder)
    result = audit(manifest, read_events(folder, manifest), allow)
    print_audit(result, manifest)
    if not result.holds:
        raise BenchError(
            f"the audit of {manifest.run_id} does not hold: {'; '.join(result.faults)}"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns 0, 1 (failed), 2 (wrong use) or 130 (interrupted)."""
    try:
        bench.main(args=arguments, prog_name="python -m bench", standalone_mode=False)
    except click.exceptions.Abort:
        return _fail("interrupted", 130)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except click.ClickException as fault:
        return _fail(fault.format_message(), fault.exit_code)
    except BenchError as fault:
        return _fail(str(fault), fault.exit_code)
    except ConfigError as fault:
        return _fail(str(fault), 2)
    except (MessageBusError, OSError) as fault:
        return _fail(str(fault), 1)
    return 0


def _fail(line: str, exit_code: int) -> int:
    print(f"bench: {' '.join(line.split())}", file=sys.stderr)
    return exit_code
