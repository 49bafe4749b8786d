"""`messagebus worker`: run an application's handlers until a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

import click

from messagebus.app import GRACE_S, App
from messagebus.commands.options import NumberRange, log_option, log_to_stderr
from messagebus.http.probes import ProbeServer, parse_address
from messagebus.worker import Supervisor, load, work
from messagebus.worker.process import Parent, say
from messagebus.worker.supervisor import PARENT_OPTION, child_command

PROCESSES_MAX = 1_000
GRACE_S_MAX = 86_400


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    default=1,
    show_default=True,
    help="Number of processes, each a consumer of its own. One of several that crashes is restarted.",
)
@click.option("--health", metavar="HOST:PORT", help="Serve /ready, /live and /metrics there.")
@click.option(
    "--health-name",
    "names",
    metavar="HOST",
    multiple=True,
    help="Answer there only requests for this host, for addresses and for names without a dot. Repeatable.",
)
@click.option(
    "--grace-s",
    type=NumberRange(min=0, max=GRACE_S_MAX),
    default=GRACE_S,
    show_default=True,
    help="Seconds for handlers that run at SIGTERM.",
)
@log_option
@click.option("-v", "--verbose", is_flag=True, help="Also log connections and consumer lists.")
@click.option(PARENT_OPTION, type=int, hidden=True)
def worker(
    target: str,
    processes: int,
    health: str | None,
    names: tuple[str, ...],
    grace_s: float,
    form: str,
    verbose: bool,
    parent_fd: int | None,
) -> int:
    """Run the handlers of MODULE:APP until SIGTERM or SIGINT.

    Then it takes no more deliveries, finishes running handlers within the grace, answers their deliveries,
    and says in one line what it could not finish; a second signal ends it at once. Exit code 0: all
    finished; 1: not all, or it failed; 2: wrong use, or the module does not import; 5: the broker refused
    the login; 6: nobody listens where the bus is. MODULE alone is MODULE:app. A module is looked for in
    the working directory first. Once it runs it waits for brokers that are away.

    \b
    Example:
      messagebus worker shop.orders:app --processes 4 --health 127.0.0.1:8080 --log json
    """
    verbose = log_to_stderr(form, verbose=verbose)
    logging.getLogger("messagebus.worker").setLevel(logging.INFO)  # its handlers, always
    address = None if health is None else parse_address(health)
    if names and address is None:
        raise click.UsageError("--health-name requires --health")
    if processes == 1:
        return _work(target, address, names, grace_s, parent_fd)
    command = child_command(
        target, grace_s=grace_s, verbose=verbose, form=form, shows_metrics=address is not None
    )
    return asyncio.run(_supervise(command, processes, address, names, grace_s))


def _work(
    target: str,
    address: tuple[str, int] | None,
    names: tuple[str, ...],
    grace_s: float,
    parent_fd: int | None,
) -> int:
    parent = None
    if parent_fd is not None:
        # A terminal's Ctrl-C reaches all; the parent alone passes it on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        parent = Parent(socket.socket(fileno=parent_fd), grace_s=grace_s)
        # systemd tells all processes of a unit, and so does the parent: twice is as good as once.
        signal.signal(signal.SIGTERM, lambda _number, _frame: parent.stop())

    def loaded() -> App:
        app = load(target)
        app.reach()
        return app

    return work(loaded, grace_s=grace_s, health=address, health_names=names, parent=parent)


async def _supervise(
    command: list[str],
    processes: int,
    address: tuple[str, int] | None,
    names: tuple[str, ...],
    grace_s: float,
) -> int:
    supervisor = Supervisor(command, processes, grace_s=grace_s, say=say)
    server = None if address is None else ProbeServer(address, supervisor.ask(), names=names)
    try:
        return await supervisor.run()
    finally:
        if server is not None:
            server.close()
