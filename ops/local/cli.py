"""`python -m ops local`: a whole cluster on this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from inventory.inventory import ENV_PATH
from messagebus.terminal import plural, printable, say
from ops.commands import doors
from ops.commands.kits import CHECKOUT
from ops.local.cluster import DEFAULT_BROKERS, LocalCluster
from ops.local.layout import BALANCERS_MAX, DEFAULT_NETWORK, LOOPBACK
from ops.local.roots import ENV_ROOT, RELEASES, of_version
from ops.local.servers import CHOICES, choices_of, url

ENV_DIR = "MESSAGEBUS_LOCAL_DIR"
_SIGNALS = {"STOP": signal.SIGSTOP, "CONT": signal.SIGCONT, "KILL": signal.SIGKILL}
_AFTER_SIGNAL = {"STOP": "stands still", "CONT": "goes on", "KILL": "has ended"}


def default_dir() -> Path:
    """Return $MESSAGEBUS_LOCAL_DIR, else .local in the checkout."""
    return Path(os.environ.get(ENV_DIR) or CHECKOUT / ".local")


def _dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--dir",
        type=click.Path(path_type=Path),
        default=default_dir,
        help=f"Folder of the cluster; default ${ENV_DIR} or .local.",
    )
    return option(command)


_of_version = click.option(
    "--rabbitmq",
    "version",
    type=click.Choice(list(RELEASES)),
    help="Version of its RabbitMQ; default the cluster's.",
)


@click.group(short_help="Run a whole cluster on this machine.")
def local() -> None:
    """Run a whole cluster on loopback addresses: brokers, agents, HAProxy.

    \b
    Example:
      python -m ops local up
      python -m ops local status
      python -m ops local kill mb2 && python -m ops local start mb2
      python -m ops local down
    """


@local.command(short_help="Start all parts that do not run, and wait for them.")
@_dir_option
@click.option(
    "--brokers",
    type=click.IntRange(1, 99),
    help=f"Number of brokers of a new cluster; default {DEFAULT_BROKERS}.",
)
@click.option("--network", help=f"First three numbers of all addresses; default {DEFAULT_NETWORK}.")
@click.option(
    "--port-offset", type=click.IntRange(0, 30_000), help="Number that is added to all ports."
)
@click.option(
    "--balancers",
    type=click.IntRange(1, BALANCERS_MAX),
    help="Number of balancers of a new cluster; default 1.",
)
@click.option(
    "--tls", is_flag=True, help="Make a new cluster whose brokers and agents speak only TLS."
)
@click.option(
    "--with",
    "servers",
    default="",
    metavar="SERVER[,SERVER]...",
    help=f"Servers to have beside the brokers: {', '.join(CHOICES)}; redis:always for its appendfsync.",
)
@click.option(
    "--rabbitmq",
    type=click.Choice(list(RELEASES)),
    help="RabbitMQ version of a new cluster; default the installed one.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help=f"Root folder of the Debian system that a new cluster's programs come from; default ${ENV_ROOT}.",
)
def up(
    dir: Path,
    brokers: int | None,
    network: str | None,
    port_offset: int | None,
    balancers: int | None,
    tls: bool,
    servers: str,
    rabbitmq: str | None,
    root: Path | None,
) -> None:
    """Start all parts that do not run yet, and wait until all brokers take publishes.

    \b
    Example:
      python -m ops local up --brokers 3
      python -m ops local up --tls --dir /tmp/with-tls
      python -m ops local up --rabbitmq 4.3 --dir /tmp/with-4.3
      python -m ops local up --with redis,postgresql,mariadb
      python -m ops local up --with monitor,prometheus
    """
    if rabbitmq and root:
        raise click.UsageError("--rabbitmq or --root, not both")
    if network and not network.startswith(LOOPBACK):
        raise click.UsageError(f"--network {network}: three numbers that begin with 127, 127.0.7")
    choices = choices_of(servers)
    console = Console(stderr=True)
    said = ""
    with console.status("starting the local cluster") as shown:

        def show(text: str) -> None:
            nonlocal said
            if console.is_terminal:
                shown.update(Text(printable(text)))
            elif text != said:
                console.print(Text(printable(text)), soft_wrap=True)
            said = text

        if rabbitmq:
            root = of_version(rabbitmq, say=show)
        cluster = LocalCluster(
            dir,
            brokers or DEFAULT_BROKERS,
            network=network,
            port_offset=port_offset,
            tls=tls,
            balancers=balancers,
            root=root,
            choices=choices,
            say=lambda line: console.print(Text(printable(line))),
            show=show,
        )
        cluster.up()
    if brokers and len(cluster.names) != brokers:
        console.print(
            f"this cluster has {plural(len(cluster.names), 'broker')}; `python -m ops add NAME` adds one"
        )
    for server in cluster.layout.servers:
        login = f"password in {server.password_file}"
        if server.kind == "monitor":
            login = "without a login, for every user of this machine"
        console.print(Text(printable(f"{server.name}: {url(server)}, {login}")), soft_wrap=True)
    _print_environment(cluster)


@local.command()
@_dir_option
@click.option("--wipe", is_flag=True, help="Remove data and settings too.")
def down(dir: Path, wipe: bool) -> None:
    """Stop everything that `up` started; data stay. Says which folder that was.

    \b
    Example:
      python -m ops local down --wipe
    """
    cluster = LocalCluster(dir)
    if not cluster.down(wipe=wipe):
        say(
            f"no cluster in {cluster.dir}: nothing was {'removed' if wipe else 'stopped'}", err=True
        )
    elif wipe:
        say(f"removed the cluster in {cluster.dir}, with its data")
    else:
        say(f"stopped the cluster in {cluster.dir}; its data stay")


@local.command()
@_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def status(dir: Path, as_json: bool) -> None:
    """Show every part: addresses, pid, state.

    \b
    Example:
      python -m ops local status --json
    """
    found = LocalCluster(dir).status()
    click.echo(json.dumps(found, indent=2)) if as_json else _print_status(found)


@local.command(short_help="Print whether NAME is active or inactive.")
@_dir_option
@click.argument("name")
def state(dir: Path, name: str) -> None:
    """Print whether the process of the part NAME exists: active or inactive.

    \b
    Example:
      python -m ops local state mb2-agent
    """
    say("active" if LocalCluster(dir).process_of(name) else "inactive")


@local.command(short_help="Signal a broker, its agent, haproxy, epmd or a server.")
@_dir_option
@click.argument("name")
@click.option(
    "--signal",
    "word",
    type=click.Choice(list(_SIGNALS)),
    default="KILL",
    show_default=True,
    help="Signal to send.",
)
def kill(dir: Path, name: str, word: str) -> None:
    """Signal NAME: a broker (mb2), its agent (mb2-agent), haproxy, epmd or a server (redis).

    \b
    Example:
      python -m ops local kill mb2
      python -m ops local kill mb2 --signal STOP
    """
    LocalCluster(dir).kill(name, number=_SIGNALS[word])
    say(f"{name} {_AFTER_SIGNAL[word]}")


@local.command(short_help="Fail unless the broker NAME calls itself ADDRESS.")
@_dir_option
@click.argument("name")
@click.argument("address")
def named(dir: Path, name: str, address: str) -> None:
    """Fail unless the broker NAME, asked as an Erlang node, calls itself ADDRESS.

    \b
    Example:
      python -m ops local named mb2 127.0.0.12:5672
    """
    say(LocalCluster(dir).evaluate(name, doors.named(address)))


@local.command(
    short_help="Run rabbitmqctl at the broker NAME.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@_dir_option
@click.argument("name")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
def ctl(dir: Path, name: str, words: tuple[str, ...]) -> int:
    """Run rabbitmqctl at the broker NAME: all WORDS after it are rabbitmqctl's. Exit code: rabbitmqctl's.

    \b
    Example:
      python -m ops local ctl mb2 list_queues name messages
      python -m ops local ctl mb2 status
    """
    return LocalCluster(dir).ctl(name, words)


@local.command(short_help="Shut the doors of the empty broker NAME.")
@_dir_option
@click.argument("name")
@click.argument("address")
def shut(dir: Path, name: str, address: str) -> None:
    """Shut the doors of the broker NAME that calls itself ADDRESS, and count its messages: none must be left.

    It takes no connection until `ops local start NAME`. With a message in it, its doors stay open.

    \b
    Example:
      python -m ops local shut mb2 127.0.0.12:5672
    """
    say(LocalCluster(dir).evaluate(name, doors.shut(address)))


@local.command()
@_dir_option
@click.argument("name")
def start(dir: Path, name: str) -> None:
    """Start NAME, a killed or stopped part; open its shut doors.

    \b
    Example:
      python -m ops local start mb2
    """
    with Console(stderr=True).status(f"waiting until {printable(name)} answers"):
        LocalCluster(dir).start(name)
    say(f"{name} answers")


@local.command()
@_dir_option
@click.argument("name")
def stop(dir: Path, name: str) -> None:
    """Stop NAME gracefully.

    \b
    Example:
      python -m ops local stop mb2-agent
    """
    with Console(stderr=True).status(f"waiting until {printable(name)} has ended"):
        LocalCluster(dir).stop(name)
    say(f"{name} does not run")


@local.command(short_help="Make the folder and settings of a new node NAME.")
@_dir_option
@_of_version
@click.argument("name")
def provision(dir: Path, name: str, version: str | None) -> None:
    """Make the folder and settings of a new node NAME.

    `ops add` does it for you; to add a broker of another version, do this before.

    \b
    Example:
      python -m ops local provision mb4
      python -m ops local provision mb4 --rabbitmq 4.0 && python -m ops add mb4
    """
    LocalCluster(dir).provision(name, version or "")


@local.command(short_help="Make the root folder with the programs of RabbitMQ VERSION.")
@click.argument("version", type=click.Choice(list(RELEASES)))
def fetch(version: str) -> None:
    """Make the root folder with the programs of RabbitMQ VERSION, where it is missing.

    \b
    Example:
      python -m ops local fetch 4.0
    """
    say(f"RabbitMQ {version} is in {of_version(version, say=say)}")


@local.command(short_help="Remove the stopped node NAME with its data.")
@_dir_option
@click.argument("name")
def forget(dir: Path, name: str) -> None:
    """Remove the stopped node NAME with its data; `ops remove` does it for you.

    \b
    Example:
      python -m ops local forget mb4
    """
    LocalCluster(dir).forget(name)


def _print_environment(cluster: LocalCluster) -> None:
    """Print the settings of clients, and where the kits find this cluster."""
    kits = {ENV_PATH: str(cluster.inventory), ENV_DIR: str(cluster.dir)}
    for key, value in (cluster.client_env() | kits).items():
        click.echo(f"export {key}={shlex.quote(value)}")


def _print_status(status: dict[str, Any]) -> None:
    console = Console()
    say(
        f"{status['cluster']}: AMQP {status['broker']}, list {status['list_url']} "
        f"(generation {status['generation']}), statistics {status['stats_url']}"
    )
    table = Table("part", "address", "state", "pid", "agent", "verdict", "list", box=None)
    for one in status["parts"]:
        listed = "draining" if one.get("draining") else "yes" if one.get("listed") else "no"
        table.add_row(
            *(
                Text(printable(cell))
                for cell in (
                    one["name"],
                    one.get("address", ""),
                    one["state"],
                    one["pid"] or "",
                    one.get("agent_state", ""),
                    one.get("verdict", ""),
                    listed if one["kind"] == "broker" else "",
                )
            )
        )
    console.print(table)
