"""Checks between the steps of a playbook. Each looks once and reports an unmet condition.

A check returns "" when it holds. Its input is a `View`; its conclusion is pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from inventory import serving
from messagebus.destination import GROUPS, SEGMENTS
from messagebus.errors import ConfigError
from messagebus.observing.snapshot import Chain
from messagebus.terminal import plural
from ops.cluster.management import Connection, Queue
from ops.cluster.view import View
from ops.errors import NoAnswer, NotProved, OpsError
from ops.run.plan import Blocked, Check, as_check

NAMES_SHOWN = 5


class Steady:
    """Confidence in statistics that lag: two equal looks, more than one interval apart, are believed.

    Statistics show the past: an event shortly before a look is not in them yet.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        """interval_s: upper bound of the lag of the broker's statistics."""
        self._interval_s, self._clock = interval_s, clock
        self._since: float | None = None

    def holds(self) -> bool:
        """Note that the condition held in this look. Returns whether it has held for long enough."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        return now - self._since > self._interval_s

    def broken(self) -> None:
        """Note that the condition did not hold in this look, or proved wrong."""
        self._since = None


def some(names: Sequence[str]) -> str:
    """Return the first NAMES_SHOWN names, and the number of the others."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


@as_check
def answers(view: View, name: str) -> str:
    """Check that the broker's management API answers, which it does last of all in its boot.

    Under its own name, too: what was started may be another broker's. Its start has returned by now, so that
    it listens for AMQP. Raises Blocked when nobody does: it has ended.
    """
    try:
        view.brokers.queues(name)
        own, found = str(view.node(name).address), view.brokers.overview(name)["cluster_name"]
    except NoAnswer:
        if view.is_shut(name):
            raise Blocked(f"{name} has ended: nothing listens there; see its log") from None
        raise
    return "" if found == own else f"the broker at its addresses calls itself {found}, not {own}"


@as_check
def is_itself(view: View, name: str) -> str:
    """Check that the broker and the agent at a node's addresses are its own.

    Raises Blocked when one is another's; NoAnswer when one is silent.
    """
    if fault := misnamed(view, name, is_silent_fine=False):
        raise Blocked(fault)
    return ""


def misnamed(view: View, name: str, *, is_silent_fine: bool) -> str:
    """Return whose broker or agent answers at a node's addresses, in words; "" where they are its own.

    A broker's name is its address. An agent proves its own with the operators' token, and refuses a proof
    that is meant for another one. Raises NoAnswer for a silent one, unless that is fine.
    """
    node = view.node(name)
    own = str(node.address)
    for what, ask in (
        (
            f"management of {name}, {node.management},",
            lambda: view.brokers.overview(name)["cluster_name"],
        ),
        (f"agent of {name}, {node.agent},", lambda: view.agents.observed(name).broker),
    ):
        try:
            found = ask()
        except NotProved as fault:
            return f"{fault}: another one may answer there; see the addresses of {name} in the inventory"
        except (NoAnswer, ConfigError, OSError):
            if not is_silent_fine:
                raise
        else:
            if found != own:
                return (
                    f"the {what} is that of {found}, not {own}: see the addresses in the inventory"
                )
    return ""


def refuse_strangers(view: View) -> None:
    """Raise OpsError when what answers at the addresses of some node is another one, by its own word."""
    known = [node.name for node in view.nodes if node.name not in view.absent.nodes]
    if faults := [f for name in known if (f := misnamed(view, name, is_silent_fine=True))]:
        raise OpsError("; ".join(faults))


@as_check
def fell_silent(view: View, name: str, *ends: str) -> str:
    """Check that nobody listens at these addresses of a node any more.

    Whoever stopped it did that on the host, and this looks at the addresses: so both are known to be its own.
    """
    left = [what for what in ends if not view.is_shut(name, what)]
    return f"a process still listens at its {some(left)}" if left else ""


@as_check
def topology_is_there(view: View, name: str) -> str:
    """Check that the node has every wanted queue, settled, and that its gate is open."""
    settled = view.agents.settled(name)
    if not settled["settled"]:
        return "its topology is not there and settled yet"
    if settled["gate"]:
        return ""
    return str(view.agents.health(name).get("reason", "its gate is shut"))


@as_check
def holds_back(view: View, name: str) -> str:
    """Check that the node's agent asks publishers to stay away."""
    verdict = view.agents.health(name)["verdict"]
    return "" if verdict != "ready" else "its agent still says ready"


@as_check
def takes_publishes(view: View, name: str) -> str:
    """Check that the node takes publishes and that its agent sends publishers there."""
    health = view.agents.health(name)
    return "" if health["verdict"] == "ready" else str(health.get("reason", "not ready"))


@as_check
def agents_serve_the_list(view: View) -> str:
    """Check that every agent serves the generation of the operators' copy."""
    wanted = view.listed.generation
    late = [f"{name} ({has})" for name, has in view.agents.generations().items() if has < wanted]
    return f"generation {wanted} is not served by {some(late)}" if late else ""


@as_check
def applied_and_attached(view: View, name: str) -> str:
    """Check that every live client works by the present list, and consumes here as on other brokers."""
    if late := _late(view):
        return late
    here = view.brokers.queues(name)
    others = [
        queue
        for node in view.brokers.present
        if node.name != name
        for queue in view.brokers.queues(node.name)
    ]
    missing = unattached(here, others)
    return f"no consumer here for {some(missing)}" if missing else ""


@as_check
def is_no_home(view: View, name: str) -> str:
    """Check that no partition is at home on the broker, or has messages there that come first."""
    left = at_home(view.agents.chains(), str(view.node(name).address))
    return f"partitions of {some(sorted(left))} are at home there" if left else ""


def at_home(chains: Mapping[str, Sequence[Chain]], address: str) -> dict[str, list[int]]:
    """Return the partitions of each topic that have a segment on this broker."""
    found = {
        topic: [p for p, c in enumerate(each) if any(h.broker == address for h in c.homes)]
        for topic, each in chains.items()
    }
    return {topic: partitions for topic, partitions in found.items() if partitions}


@as_check
def knows_the_topology(view: View, name: str) -> str:
    """Check that the node's agent has every entry that another agent has.

    From now on, each change asks it too.
    """
    missing = behind(view.agents.maps(), name)
    return f"its agent has not read {some(missing)}" if missing else ""


def left_by_publishers(
    view: View, name: str, *, interval_s: float, clock: Callable[[], float] = time.monotonic
) -> Check:
    """Check that no application but consumers has a connection to the broker, for certain.

    A connection is in the statistics only after an interval: see `Steady`.
    """
    steady = Steady(interval_s, clock)

    def check() -> str:
        left = [each for each in view.brokers.connections(name) if not each.consumes]
        if left:
            steady.broken()
            return f"{plural(len(left), 'connection')} that may publish: {_who(left)}"
        return "" if steady.holds() else "none that may publish, checking again"

    return check


@as_check
def left_by_clients(view: View, nobody_is_connected: Check) -> str:
    """Check that every live client works by the list without the broker, and that the other check holds."""
    left = nobody_is_connected()
    return _late(view) or left


def nobody_is_connected(
    view: View, name: str, *, interval_s: float, clock: Callable[[], float] = time.monotonic
) -> Check:
    """Check that no application has a connection to the broker, for certain."""
    steady = Steady(interval_s, clock)

    def check() -> str:
        left = view.brokers.connections(name)
        if left:
            steady.broken()
            return f"{plural(len(left), 'connection')} of clients: {_who(left)}"
        return "" if steady.holds() else "no client is connected, checking again"

    return check


@as_check
def off_the_list(view: View, name: str, address: str) -> str:
    """Check that no served list names the broker, and that no balancer sends publishers there.

    Its own agent may be away, and so may agents and balancers that are known to be dead.
    """
    if address in view.listed.names:
        return f"the list names {name}"
    for one in view.agents.served():
        if one.served is None and one.node != name:
            return f"it is not known whether {one.node} still lists {name}: {one.fault}"
        if one.served is not None and address in one.served.names:
            return f"{one.node} serves a list that names {name}"
    if sent := [lb for lb, brokers in view.balancers.sending().items() if name in brokers]:
        return f"{some(sent)} sends publishers to {name}"
    return ""


@as_check
def not_listed_again(view: View, name: str, address: str) -> str:
    """Check that nobody has put a broker back on the operators' list, which a run took off it before."""
    if address not in view.listed.names:
        return ""
    remove = f"python -m consumer_lists remove {name}"
    return f"the list names {name} again: `{remove}`, then `push`; or leave it in service"


@as_check
def unused(view: View, name: str, address: str) -> str:
    """Check as `off_the_list` does; also that the broker, if it answers, has no message and no client.

    For a broker that was never in use: a used one is emptied first.
    """
    is_off = off_the_list(view, name, address)
    if fault := is_off():
        return fault
    if not any(node.name == name for node in view.nodes):
        return ""
    if fault := misnamed(view, name, is_silent_fine=True):
        return fault
    try:
        held = [queue for queue in view.brokers.all_queues(name) if queue.messages != 0]
        connected = view.brokers.connections(name)
    except NoAnswer:
        return ""
    if held:
        return f"{some([str(queue) for queue in held])} of {name} may hold messages"
    return f"connected to {name}: {_who(connected)}" if connected else ""


@as_check
def others_serve(view: View, names: Collection[str], *, wanted: int) -> str:
    """Check that `wanted` brokers take publishes while those of these names do not. Raises Blocked.

    A broker serves when it is on the list and not draining, its agent says ready, and every balancer
    that is not absent sends publishers to it.
    """
    faults = _serving_faults(view, but=names)
    if why := serving.too_few(faults, names, wanted):
        raise Blocked(why)
    return ""


def refuse_last(view: View, name: str) -> None:
    """Refuse to take a broker out by hand where too few others take publishes. Raises TooFewServe.

    One whose agent does not answer may take them.
    """
    entry = view.listed.find(str(view.node(name).address))
    if entry is None or entry.draining:
        return
    with suppress(NoAnswer):
        if view.agents.health(name)["verdict"] != "ready":
            return
    serving.refuse_last(name, _serving_faults(view, but={name}), view.inventory.serving_min)


def _serving_faults(view: View, *, but: Collection[str]) -> dict[str, str]:
    """Return why each broker takes no publishes, "" where it does. but: names that are not asked."""
    sending, silent = _sending(view)
    return {
        node.name: _not_serving(view, node.name, str(node.address), sending) or silent
        for node in view.nodes
        if node.name not in but
    }


def _sending(view: View) -> tuple[Mapping[str, Collection[str]], str]:
    """Return `View.sending`; and the reason why it is not known, "" where it is."""
    try:
        return view.balancers.sending(), ""
    except NoAnswer as fault:
        return {}, str(fault)


def _not_serving(
    view: View, name: str, address: str, sending: Mapping[str, Collection[str]]
) -> str:
    """Return why a broker does not take publishes, "" when it does."""
    if fault := not_ready(view, name, address):
        return fault
    closed = sorted(lb for lb, brokers in sending.items() if name not in brokers)
    return f"{some(closed)} sends no publishers there" if closed else ""


def not_ready(view: View, name: str, address: str) -> str:
    """Return why a broker should not be published to, by the list and its agent; "" when it should."""
    entry = view.listed.find(address)
    if entry is None or entry.draining:
        return "draining" if entry else "not on the list"
    try:
        health = view.agents.health(name)
    except NoAnswer as fault:
        return str(fault)
    return "" if health["verdict"] == "ready" else str(health.get("reason") or health["verdict"])


@as_check
def is_dead(view: View, name: str) -> str:
    """Check that neither the broker nor its agent answers. Raises Blocked when one does."""
    for what, ask in (("broker", view.brokers.queues), ("agent", view.agents.health)):
        with suppress(NoAnswer):
            ask(name)
            stop = _how_to_stop(view, name)
            raise Blocked(
                f"the {what} of {name} answers, and nothing here stops it, --lose-messages neither: `ops"
                f" remove {name}` takes a running broker out with no message lost; if its disk is lost, stop"
                f" broker and agent ({stop}), then type this again"
            )
    return ""


def _how_to_stop(view: View, name: str) -> str:
    """Return the commands that stop a broker and its agent on their host."""
    if view.inventory.supervisor == "local":
        stop = "python -m ops local stop"
        return f"`{stop} {name}`, `{stop} {name}-agent`"
    host = view.inventory.ssh_of(view.node(name))
    return f"`ssh {host} systemctl stop rabbitmq-server messagebus-agent`"


@as_check
def its_agent_answers(view: View, name: str) -> str:
    """Check that a broker's agent answers, as every agent must to get another list. Raises Blocked."""
    return _answers(view.agents.health, name)


@as_check
def it_answers(view: View, name: str) -> str:
    """Check that a broker answers, as one must that is emptied or restarted. Raises Blocked."""
    return _answers(view.brokers.overview, name)


def _answers(ask: Callable[[str], object], name: str) -> str:
    try:
        ask(name)
    except NoAnswer as fault:
        raise Blocked(
            f"{fault}: start it first; if its host does not come back, `ops replace {name}`"
        ) from None
    return ""


@as_check
def nobody_answers(view: View) -> str:
    """Check that there is no cluster yet: no agent of the inventory answers. Raises Blocked when one does."""
    for node in view.nodes:
        with suppress(NoAnswer):
            view.agents.health(node.name)
            raise Blocked(f"the agent of {node.name} answers: this cluster is there already")
    return ""


@as_check
def lists_all(view: View) -> str:
    """Check that the operators' list names every broker of the inventory."""
    missing = {str(node.address) for node in view.nodes} - view.listed.names
    return f"it does not name {some(sorted(missing))}" if missing else ""


@as_check
def all_ready(view: View) -> str:
    """Check `takes_publishes` of every broker."""
    missing = {node.name: takes_publishes(view, node.name)() for node in view.nodes}
    return "; ".join(f"{name}: {what}" for name, what in missing.items() if what)


def publishes_arrive(view: View, name: str) -> Check:
    """Check that the broker has been published to since this check was made, and consumed from."""
    before: list[tuple[int, int]] = []

    def check() -> str:
        published, acked = view.brokers.counts(name)
        if not before:
            before.append((published, acked))
        if published <= before[0][0]:
            return "no publish yet; publishers come as their connections renew"
        return "" if acked > before[0][1] else "publishes arrive and are not acknowledged yet"

    return check


def unattached(here: Iterable[Queue], elsewhere: Iterable[Queue]) -> list[str]:
    """Return the names of queues that have consumers elsewhere and none here; not those of partitions."""
    wanted = {
        queue.name
        for queue in elsewhere
        if queue.consumers and not queue.name.startswith((SEGMENTS, GROUPS))
    }
    return sorted(wanted - {queue.name for queue in here if queue.consumers})


def behind(maps: Mapping[str, Mapping[str, tuple[int, str, bool]]], name: str) -> list[str]:
    """Return the names of topology entries of which another agent has a later state than this one."""
    mine = maps[name]
    later = {
        wanted
        for entries in maps.values()
        for wanted, entry in entries.items()
        if wanted not in mine or entry > mine[wanted]
    }
    return sorted(later)


def clients_at_generation(view: View) -> str:
    """Return a sentence on the number of clients that work by the present list, for a proof.

    Raises NoAnswer.
    """
    clients, wanted = view.agents.clients(), view.listed.generation
    applied = sum(each.applied >= wanted for each in clients)
    return f"{applied} of {len(clients)} clients work by generation {wanted}"


def _who(connections: Iterable[Connection]) -> str:
    return some([str(each) for each in connections])


def _late(view: View) -> str:
    """Return the clients that work by an older list, in words.

    Without any client, that proves nothing where queues are consumed: then the queues are named.
    """
    wanted, clients = view.listed.generation, view.agents.clients()
    if not clients:
        queues = (
            queue for node in view.brokers.present for queue in view.brokers.queues(node.name)
        )
        consumed = sorted({queue.name for queue in queues if queue.consumers})
        if consumed:
            return f"no client asks for the list, and a consumer reads from {some(consumed)}"
    late = [
        f"{seen.id} of {seen.subscription or 'no subscription'} ({seen.applied})"
        for seen in clients
        if seen.applied < wanted
    ]
    return f"generation {wanted} is not applied by {some(late)}" if late else ""


@as_check
def listed_ready(view: View, address: str) -> str:
    """Check that the operators' list names the broker, and not as draining: consumers know it."""
    entry = view.listed.find(address)
    if entry is None:
        return f"the list does not name {address}, so no consumer would read there"
    return f"the list has {address} as draining" if entry.draining else ""


def every(*these: Check) -> Check:
    """Return the check that all of these hold; it tells the first that does not."""
    return lambda: next(filter(None, (each() for each in these)), "")
