"""Quotas of a running cluster: set, removed, listed, shared anew. `python -m ops quota`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import click

from inventory.inventory import Inventory
from messagebus.destination import Queue, Subscription
from messagebus.errors import ConfigError
from messagebus.terminal import plural, say
from messagebus.topology import STREAM_PREFIX, parse_wanted
from ops.cluster.members import Absent
from ops.cluster.quotas import Quota
from ops.cluster.topology import latest
from ops.cluster.view import View
from ops.errors import OpsError
from ops.run.command import inventory_option, locked

MESSAGES_MAX, MB_MAX = 10**12, 10**9
# In the names of entries for segments of partitions.
SEGMENT_MARK = "#"


class Quotas:
    """The quotas of one cluster."""

    def __init__(self, view: View) -> None:
        self._view = view
        entries = [each["entries"] for each in view.agents.snapshots().values()]
        maps = {str(n): {e["wanted"]: e for e in each} for n, each in enumerate(entries)}
        self._entries = {name: each for name, each in latest(maps).items() if each["alive"]}

    def found(self) -> dict[str, dict[str, Quota]]:
        """Return the quotas of each present broker, by source. Raises NoAnswer."""
        return {
            node.name: {
                quota.source: quota
                for policy in self._view.brokers.policies(node.name)
                if (quota := Quota.read(str(policy["name"])))
            }
            for node in self._view.brokers.present
        }

    def check(self, source: str, *, refuse_topic: bool) -> None:
        """Raise ConfigError for what does not exist, and for one of several subscriptions of a topic.

        refuse_topic: accepts the latter.
        """
        if source not in self._entries or not isinstance(
            parse_wanted(source), Subscription | Queue
        ):
            raise ConfigError(
                f"{source}: no such subscription or queue; see messagebus subscriptions list"
            )
        topic, _, _name = source.partition("/")
        others = sorted(
            each
            for each in self._entries
            if (each.startswith(f"{topic}/") or each == f"{STREAM_PREFIX}{topic}")
            and each != source
            and SEGMENT_MARK not in each
        )
        if others and not refuse_topic:
            raise ConfigError(
                f"{source}: when it is full, its topic refuses messages, and {', '.join(others)} stores each"
                " refused message and gets it again when it is sent again; --refuse-topic accepts that"
            )

    def set(self, quota: Quota) -> None:
        """Give every present broker its share. Raises NoAnswer."""
        partitions = self._partitions(quota.source)
        nodes = self._view.brokers.present
        queues = partitions or len(self._view.inventory.brokers)
        for node in nodes:
            policy = quota.policy(
                queues=queues, partitions=partitions, bound=_bound(self._view.inventory)
            )
            self._view.brokers.put_policy(node.name, quota.name, policy)
            self._drop(node.name, quota.source, but=quota.name)

    def clear(self, source: str) -> int:
        """Remove the quota of a source. Returns the number of brokers that had one. Raises NoAnswer."""
        return sum(self._drop(node.name, source) for node in self._view.brokers.present)

    def share(self) -> dict[str, Quota]:
        """Compute all shares anew, and give them to every present broker. Returns the quotas by source.

        Where brokers differ, the quota of most of them counts.
        """
        quotas = dict[str, list[Quota]]()
        for found in self.found().values():
            for source, quota in found.items():
                quotas.setdefault(source, []).append(quota)
        wanted = {source: max(each, key=each.count) for source, each in sorted(quotas.items())}
        for source, quota in wanted.items():
            if source in self._entries:
                self.set(quota)
            else:
                self.clear(source)
        return {source: quota for source, quota in wanted.items() if source in self._entries}

    def _drop(self, node: str, source: str, *, but: str = "") -> bool:
        names = [str(each["name"]) for each in self._view.brokers.policies(node)]
        old = [n for n in names if n != but and (quota := Quota.read(n)) and quota.source == source]
        for name in old:
            self._view.brokers.drop_policy(node, name)
        return bool(old)

    def _partitions(self, source: str) -> int:
        """Return the partitions of a subscription with a queue for each, else 0."""
        options = self._entries[source]
        if "/" not in source or not options.get("ordered", True):
            return 0
        return int(options.get("partitions", 0))


def _bound(inventory: Inventory) -> int | None:
    return None if inventory.supervisor == "local" else inventory.provision.queue_mb_max * 1_000_000


@click.group("quota", short_help="Bound the messages of a subscription or queue.")
def quota() -> None:
    """Bound the messages that a subscription or queue may hold, over all brokers.

    A full one refuses publishes and drops nothing. Publishers get the outcome REFUSED, or wait with
    on_full="wait".

    \b
    Example:
      python -m ops quota set orders/billing --messages 1000000
      python -m ops quota list
    """


@quota.command("set", short_help="Set the quota of SOURCE.")
@click.argument("source")
@click.option("--messages", type=click.IntRange(1, MESSAGES_MAX), help="Messages on all brokers.")
@click.option("--mb", type=click.IntRange(1, MB_MAX), help="Megabytes of bodies on all brokers.")
@click.option(
    "--refuse-topic",
    is_flag=True,
    help="Accept that the topic's other subscriptions store refused messages.",
)
@inventory_option
def set_command(
    source: str, messages: int | None, mb: int | None, refuse_topic: bool, file: Path
) -> None:
    """Set the quota of SOURCE: a subscription, ``orders/billing``, or a queue, ``queue:jobs``.

    Every broker gets an equal share; `ops add` and `ops remove` compute the shares anew. A quota below
    what is there drops nothing.

    \b
    Example:
      python -m ops quota set orders/billing --messages 1000000 --mb 10000
    """
    if messages is None and mb is None:
        raise click.UsageError("--messages or --mb, or both")
    view = View(file.absolute())
    with locked(view.file, "quota"):
        quotas = Quotas(view)
        wanted = Quota(source=str(parse_wanted(source)), messages=messages, megabytes=mb)
        quotas.check(wanted.source, refuse_topic=refuse_topic)
        quotas.set(wanted)
    say(f"{wanted}, shared by {plural(len(view.inventory.brokers), 'broker')}")


@quota.command("clear", short_help="Remove the quota of SOURCE.")
@click.argument("source")
@inventory_option
def clear_command(source: str, file: Path) -> None:
    """Remove the quota of SOURCE.

    \b
    Example:
      python -m ops quota clear orders/billing
    """
    view = View(file.absolute())
    with locked(view.file, "quota"):
        count = Quotas(view).clear(str(parse_wanted(source)))
    if not count:
        raise OpsError(f"{source} has no quota")
    say(f"{source}: no quota any more")


@quota.command("list", short_help="Show the quotas.")
@inventory_option
def list_command(file: Path) -> None:
    """Show the quota of each subscription and queue, and brokers that differ.

    \b
    Example:
      python -m ops quota list
    """
    found = Quotas(View(file.absolute())).found()
    lines = list(_lines(found))
    for line in lines or ["no quotas"]:
        say(line)


def _lines(found: Mapping[str, Mapping[str, Quota]]) -> Iterator[str]:
    for source in sorted({source for each in found.values() for source in each}):
        quotas = {node: each.get(source) for node, each in found.items()}
        for quota in sorted(set(quotas.values()), key=lambda each: (each is None, str(each))):
            nodes = [node for node, each in quotas.items() if each == quota]
            where = "" if len(nodes) == len(found) else f" on {', '.join(nodes)}"
            say_it = f"{source}: none" if quota is None else str(quota)
            yield f"{say_it}{where}"


@quota.command("share", short_help="Compute the brokers' shares anew.")
@click.option("--without", "absent", multiple=True, metavar="NAME", help="Leave out a dead broker.")
@click.option(
    "--without-agent", "silent", multiple=True, metavar="NAME", help="Leave out a dead agent."
)
@click.option("--in-playbook", is_flag=True, hidden=True)  # which holds the lock
@inventory_option
def share_command(
    absent: Iterable[str], silent: Iterable[str], in_playbook: bool, file: Path
) -> None:
    """Compute the brokers' shares of all quotas anew, as `ops add` and `ops remove` do.

    \b
    Example:
      python -m ops quota share
    """
    nobody = frozenset(absent)
    view = View(file.absolute(), Absent(brokers=nobody, agents=nobody.union(silent)))
    with nullcontext() if in_playbook else locked(view.file, "quota"):
        quotas = Quotas(view).share()
    for each in quotas.values():
        say(str(each))
