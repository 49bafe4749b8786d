"""Rules that say what needs attention, and why: twins of the alerts in `ops/monitoring`, and some more.

Pure. A rule finds its condition in one observation and in what is kept of the past; it is raised when the
condition has held for `for_s`. A silent broker neither raises nor clears what it has shown: only AgentDown is
about silence.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from messagebus.observing.rates import Rates
from messagebus.observing.snapshot import LOSES, Answer, Bus, Kind, Row, rows_of
from messagebus.observing.totals import SOURCES, counted, uncounted
from messagebus.terminal import duration, plural

MINUTE_MS = 60_000
OLD_MS = MINUTE_MS
# The past is kept in steps of this; a whole observation is large.
STEP_MS = 2 * MINUTE_MS
STEPS_KEPT = 6
# With all rows, 64 brokers of 500 names are 10 MB; older steps keep the rows of parking queues.
STEPS_WHOLE = 2
DISK_SAMPLES = 60
NAMES_SHOWN = 3
SKEW_MS_MAX = 2_000
UNKNOWN_REASON = "unknown"
# Publishers choose another broker when their connection ends, after ten minutes by default.
UNEVEN_OVER_MS, UNEVEN_LEAST, UNEVEN_TIMES = 10 * MINUTE_MS, 1_000, 2
# As the alert of that name asks it; `ask` asks it where a Prometheus is configured.
UNKNOWN_QUERY = (
    "sum by (client, instance)"
    ' (increase(messagebus_publisher_messages_total{outcome="unknown"}[10m])) > 0'
)
Severity = Literal["page", "warn", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that holds. about: the subscription, queue, broker or balancer.

    on: brokers whose answers show it. waiting: messages that it keeps.
    """

    about: str
    text: str
    on: tuple[str, ...] = ()
    waiting: int = 0


class _Rows:
    """The rows of one observation that rules look at, each with its broker: in one pass, since rows are many.

    consumed: names that somebody consumes somewhere. bare: with messages and without a consumer.
    old: whose oldest message waits for OLD_MS. parked: parking queues. reasons: those worked out, by name.
    """

    def __init__(self, bus: Bus) -> None:
        self.consumed, self.reasons = set[str](), dict[str, str]()
        self.bare, self.old, self.parked = (list[tuple[str, Row]]() for _ in range(3))
        before_ms = bus.at_ms - OLD_MS
        for broker, answer in counted(bus).items():
            for row in answer.rows.values():
                if row.kind in SOURCES:
                    if row.consumers:
                        self.consumed.add(row.name)
                    elif row.ready or row.unacked:
                        self.bare.append((broker, row))
                    if row.oldest_at_ms is not None and row.oldest_at_ms < before_ms:
                        self.old.append((broker, row))
                elif row.kind == "park":
                    self.parked.append((broker, row))


class Past:
    """The part of earlier observations that rules need: bounded, and filled by `Attention`.

    rates: of the newest observation, by broker, name and kind, as far as they are known.
    """

    def __init__(self) -> None:
        self._steps: deque[Bus] = deque(maxlen=STEPS_KEPT)
        self._rows: tuple[Bus, _Rows] | None = None
        self.rates: Mapping[tuple[str, str, Kind], Rates] = {}
        self.disks: dict[str, deque[tuple[int, int]]] = {}

    def add(self, bus: Bus) -> None:
        if not self._steps or bus.at_ms - self._steps[-1].at_ms >= STEP_MS:
            self._steps.append(bus)
            if len(self._steps) > STEPS_WHOLE:
                at = len(self._steps) - STEPS_WHOLE - 1
                self._steps[at] = _parked_alone(self._steps[at])
        for broker, answer in counted(bus).items():
            samples = self.disks.setdefault(broker, deque(maxlen=DISK_SAMPLES))
            if answer.room and (not samples or bus.at_ms - samples[-1][0] >= MINUTE_MS):
                samples.append((bus.at_ms, answer.room.disk_free))

    def before(self, at_ms: int) -> Bus | None:
        """Return the newest kept observation that is not younger; None when none is that old."""
        return next((bus for bus in reversed(self._steps) if bus.at_ms <= at_ms), None)

    def rows(self, bus: Bus) -> _Rows:
        """Return the rows of the newest observation, found once for all rules."""
        if self._rows is None or self._rows[0] is not bus:
            self._rows = bus, _Rows(bus)
        return self._rows[1]

    def reason(self, bus: Bus, name: str) -> str:
        """Return `reason`, worked out once for all rules of one observation."""
        known = self.rows(bus).reasons
        if name not in known:
            rows = rows_of(bus, name)
            rates = [self.rates.get((broker, name, row.kind)) for broker, row in rows.items()]
            left = [each.left for each in rates if each]
            known[name] = reason(bus, name, sum(left) if len(left) == len(rates) else None)
        return known[name]


def _last(bus: Bus) -> dict[str, Answer]:
    """Return what each broker has said last, also before it fell silent."""
    return {seen.broker: seen.last for seen in bus.brokers if seen.last}


def _parked_alone(bus: Bus) -> Bus:
    def thinner(last: Answer | None) -> Answer | None:
        if last is None:
            return None
        return replace(last, rows={k: row for k, row in last.rows.items() if row.kind == "park"})

    return replace(bus, brokers=tuple(replace(e, last=thinner(e.last)) for e in bus.brokers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. for_s: so long the condition must hold. manual: the section that says what to do.

    first: what to do first. covers: rules that say less of the same name on the same brokers, which are not
    shown beside this one.
    unwatched: why an observation cannot tell whether it holds; "" when it can.
    """

    name: str
    severity: Severity
    for_s: int
    manual: str
    find: Callable[[Bus, Past], Iterable[Finding]]
    first: str = ""
    covers: tuple[str, ...] = ()
    unwatched: Callable[[Bus], str] = lambda bus: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A rule whose condition holds since since_ms. on, waiting: as of its `Finding`.

    is_seen: False while a broker that showed it says nothing: it may be over.
    """

    rule: Rule
    about: str
    text: str
    since_ms: int
    on: tuple[str, ...] = ()
    waiting: int = 0
    is_present: bool = True

    @property
    def subject(self) -> str:
        """The name without the broker: of "orders/billing on mb2:5672" it is "orders/billing"."""
        return self.about.partition(" on ")[0]

    def says(self, other: Raised) -> bool:
        """Return whether this one says all of the other, and more."""
        is_wider = other.rule.name in self.rule.covers and other.subject == self.subject
        return is_wider and set(other.on) <= set(self.on)


class Attention:
    """The rules over time: give it every observation, in order of time."""

    def __init__(self, rules: Sequence[Rule] | None = None) -> None:
        self._rules = RULES if rules is None else tuple(rules)
        self._past = Past()
        self._held: dict[tuple[str, str], Raised] = {}
        self._long: set[tuple[str, str]] = set()

    def step(
        self, bus: Bus, rates: Mapping[tuple[str, str, Kind], Rates] | None = None
    ) -> tuple[Raised, ...]:
        """Take an observation, with its rates; return what needs attention now, the most urgent first."""
        self._past.rates = rates or {}
        held, silent = dict[tuple[str, str], Raised](), uncounted(bus).keys()
        for rule in self._rules:
            for found in rule.find(bus, self._past):
                key = (rule.name, found.about)
                known = self._held.get(key)
                since_ms = known.since_ms if known else bus.at_ms
                held[key] = Raised(
                    rule=rule, about=found.about, text=found.text, since_ms=since_ms, on=found.on,
                    waiting=found.waiting,
                )  # fmt: skip
        for key, known in self._held.items():
            if key not in held and not silent.isdisjoint((known.about, *known.on)):
                held[key] = replace(known, is_present=False)
        self._past.add(bus)
        long = {
            key
            for key, each in held.items()
            if key in self._long
            or (each.is_present and bus.at_ms - each.since_ms >= each.rule.for_s * 1000)
        }
        self._held, self._long = held, long
        return tuple(sorted(_unsaid([held[key] for key in long]), key=_urgency))

    @property
    def held(self) -> Mapping[tuple[str, str], Raised]:
        """Every condition that holds, by rule and about, for however short a time."""
        return self._held

    @property
    def noticed(self) -> tuple[Raised, ...]:
        """The conditions that hold, and have not held for long enough."""
        unsaid = _unsaid(list(self._held.values()))
        return tuple(e for e in unsaid if (e.rule.name, e.about) not in self._long)


def _unsaid(several: list[Raised]) -> list[Raised]:
    """Return those that no other one of them says."""
    wider = dict[str, list[Raised]]()
    for each in several:
        if each.rule.covers:
            wider.setdefault(each.subject, []).append(each)
    return [e for e in several if not any(o.says(e) for o in wider.get(e.subject, ()))]


def _urgency(raised: Raised) -> tuple[int, bool, int, int, str, str]:
    """Return the key that puts the worst first: what makes messages late, and what keeps the most."""
    rule = raised.rule
    severity = ("page", "warn", "info").index(rule.severity)
    # By its digits, so that lines do not change places all the time.
    size = -len(str(raised.waiting))
    is_late = rule.manual.endswith(_SLOW)
    return severity, not is_late, size, raised.since_ms, raised.about, rule.name


def reason(bus: Bus, name: str, left: float | None = None) -> str:
    """Return the likely reason why a subscription or queue falls behind, the first that holds.

    Returns UNKNOWN_REASON when none does. left: messages that its consumers answer a second, where that is
    known.
    """
    rows = rows_of(bus, name)
    waiting = {broker: row for broker, row in rows.items() if row.waiting}
    if rows and not any(row.consumers for row in rows.values()):
        return "it has no consumer"
    worst = max(waiting, key=lambda each: waiting[each].oldest_ms(bus.at_ms) or 0, default="")
    if worst and not waiting[worst].consumers:
        return f"it has no consumer on {worst}"
    if waiting and all(map(_is_full, waiting.values())):
        held = sum(row.unacked or 0 for row in waiting.values())
        are = "stuck" if left == 0 else "slow"
        none = ", and answer none" if left == 0 else ""
        return (
            f"its handlers are {are}: consumers hold {held:,} messages, their whole prefetch{none}"
        )
    if len(waiting) == 1 and len(rows) > 1:
        (broker,) = waiting
        state = bus.answers[broker].state
        return f"only on {broker}" + (f", which is in {state.alarm}" if state.alarm else "")
    return UNKNOWN_REASON


def _is_full(row: Row) -> bool:
    """Return whether consumers hold as many messages as they may: what is ready is handed out at once."""
    return bool(row.ready and row.unacked and row.consumers)


# Conditions.


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = len(listed) - NAMES_SHOWN
    return ", ".join(listed[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _s(verb: str, count: int) -> str:
    """Return a verb's form for this number."""
    return {"are": "is"}.get(verb, f"{verb}s") if count == 1 else verb


def _by_name(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group brokers by the name that a rule is about there."""
    grouped = dict[str, list[str]]()
    for name, broker in pairs:
        grouped.setdefault(name, []).append(broker)
    return grouped


def _when(test: Callable[[Answer], str]) -> Callable[[Bus, Past], Iterator[Finding]]:
    """Make a condition of one broker's answer. test: the sentence, "" while it does not hold."""

    def find(bus: Bus, _past: Past) -> Iterator[Finding]:
        for broker, answer in bus.answers.items():
            if text := test(answer):
                yield Finding(broker, text, (broker,))

    return find


def _broker_down(bus: Bus, _past: Past) -> Iterator[Finding]:
    down = (
        (one.name, lb.url) for lb in bus.balancers for one in lb.servers if one.status == "DOWN"
    )
    for name, urls in _by_name(down).items():
        yield Finding(name, f"Broker {name} accepts no publishes: down according to {_some(urls)}")


def _brokers_few(bus: Bus, _past: Past) -> Iterator[Finding]:
    for lb in bus.balancers:
        up = sum(each.status == "UP" for each in lb.servers)
        if lb.servers and not lb.fault and 2 * up <= len(lb.servers):
            text = f"Only {up} of {plural(len(lb.servers), 'broker')} accept publishes, according to {lb.url}"
            yield Finding(lb.url, text)


def _disk_fills(bus: Bus, past: Past) -> Iterator[Finding]:
    for broker, answer in counted(bus).items():
        if not (room := answer.room):
            continue
        if room.disk_free < 3 * room.disk_limit:
            free = f"{room.disk_free // 1_000_000:,} MB of disk are free on {broker}"
            limit = f"below {room.disk_limit // 1_000_000:,} MB it accepts no publishes"
            yield Finding(broker, f"{free}; {limit}")
        elif (left_s := _full_in_s(past.disks.get(broker, ()), room.disk_limit)) is not None:
            rate = "at the rate of the last hour"
            yield Finding(broker, f"The disk of {broker} is full in {duration(left_s)} {rate}")


def _full_in_s(samples: Iterable[tuple[int, int]], limit: int) -> float | None:
    """Return the seconds until a linear fit reaches the limit; None if not within four hours."""
    points = [(at / 1000, free) for at, free in samples]
    if len(points) < 10:
        return None
    mean_t, mean_f = (sum(each) / len(points) for each in zip(*points, strict=True))
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    slope = sum((t - mean_t) * (f - mean_f) for t, f in points) / spread if spread else 0.0
    if slope >= 0:
        return None
    left_s = (limit - points[-1][1]) / slope
    return left_s if left_s < 4 * 3600 else None


def _lost(answer: Answer) -> str:
    new = [
        loss for loss in answer.state.losses if loss.noticed_at_ms > answer.at_ms - 10 * MINUTE_MS
    ]
    names = _some({loss.name for loss in new})
    return f"Deleted on {answer.broker} and recreated by its agent: {names}" if new else ""


def _unconsumed(bus: Bus, past: Past) -> Iterator[Finding]:
    rows, waiting = past.rows(bus), Counter[str]()
    # Where somebody consumes it elsewhere, NoConsumerHere says so sooner.
    bare = [(row.name, broker, row) for broker, row in rows.bare if row.name not in rows.consumed]
    for name, _, row in bare:
        waiting[name] += row.waiting
    for name, brokers in _by_name((name, broker) for name, broker, _ in bare).items():
        count = waiting[name]
        waits = f"{plural(count, 'message')} {_s('wait', count)}"
        yield Finding(
            name, f"{name} has no consumer; {waits} on {_some(brokers)}", tuple(brokers), count
        )


def _no_consumer_here(bus: Bus, past: Past) -> Iterator[Finding]:
    rows = past.rows(bus)
    for broker, row in rows.bare:
        if row.name in rows.consumed:
            age_ms = row.oldest_ms(bus.at_ms)
            oldest = f", the oldest for {duration(age_ms / 1000)}" if age_ms else ""
            waits = f"{plural(row.waiting, 'message')} {_s('wait', row.waiting)} there{oldest}"
            text = f"{row.name} has no consumer on {broker}; {waits}"
            yield Finding(f"{row.name} on {broker}", text, (broker,), row.waiting)


def _grows_older(bus: Bus, past: Past, *, age_s: int) -> Iterator[Finding]:
    then = past.before(bus.at_ms - STEP_MS)
    if then is None:
        return
    before, worst = _last(then), dict[str, tuple[int, str, Row]]()
    for broker, row in past.rows(bus).old:
        # The text of the worst alone is made.
        age_ms = row.oldest_ms(bus.at_ms) or 0
        if age_ms <= age_s * 1000:
            continue
        known = worst.get(row.name)
        if not age_ms or (known and known[0] >= age_ms) or broker not in before:
            continue
        was = before[broker].rows.get((row.name, row.kind))
        if was and age_ms > (was.oldest_ms(then.at_ms) or 0):
            worst[row.name] = age_ms, broker, row
    for name, (age_ms, broker, row) in worst.items():
        told = ""
        if rate := past.rates.get((broker, name, row.kind)):
            told = f": {rate.came:.1f} msg/s in, {rate.left:.1f} msg/s out"
        waits = f"The oldest message of {name} has waited on {broker} for {duration(age_ms / 1000)}"
        text = f"{waits}; its age is rising{told}. Reason: {past.reason(bus, name)}"
        waiting = sum(each.waiting for each in rows_of(bus, name).values())
        yield Finding(name, text, (broker,), waiting)


def _parked(bus: Bus, past: Past) -> Iterator[Finding]:
    counts, on = Counter[str](), dict[str, list[str]]()
    for broker, row in past.rows(bus).parked:
        if row.waiting:
            counts[row.name] += row.waiting
            on.setdefault(row.name, []).append(broker)
    for name, count in counts.items():
        text = f"{plural(count, 'message')} of {name} {_s('are', count)} parked"
        yield Finding(name, text, tuple(on[name]))


def _parked_grows(bus: Bus, past: Past) -> Iterator[Finding]:
    then = past.before(bus.at_ms - 10 * MINUTE_MS)
    if then is None:
        return
    before, now = _last(then), bus.answers
    new, on = Counter[str](), dict[str, list[str]]()
    for broker, row in past.rows(bus).parked:
        old = before.get(broker)
        if old and old.life == now[broker].life and row.arrived is not None:
            was = old.rows.get((row.name, "park"))
            new[row.name] += row.arrived - ((was and was.arrived) or 0)
            on.setdefault(row.name, []).append(broker)
    for name, count in new.items():
        if count > 10:
            text = f"{plural(count, 'message')} of {name} were parked in the last ten minutes"
            yield Finding(name, text, tuple(on[name]))


def _list_old(bus: Bus, _past: Past) -> Iterator[Finding]:
    if bus.list_age_ms > 180_000:
        old = f"No valid list for {duration(bus.list_age_ms / 1000)}"
        yield Finding("list", f"{old}: {bus.list_fault or 'no agent has been asked yet'}")


def _behind(bus: Bus, _past: Past) -> Iterator[Finding]:
    found = [
        (client.id, broker)
        for broker, answer in bus.answers.items()
        for client in answer.clients_behind
        if client.applied < bus.generation
    ]
    late, on = ({each[at] for each in found} for at in (0, 1))
    if late:
        many = "1 client uses" if len(late) == 1 else f"{len(late):,} clients use"
        text = f"{many} a list older than generation {bus.generation}"
        yield Finding("list", f"{text}: {_some(late)}", tuple(on))


def _lists_differ(bus: Bus, _past: Past) -> Iterator[Finding]:
    served = _by_name((str(a.state.generation), broker) for broker, a in bus.answers.items())
    if len(served) > 1:
        told = "; ".join(f"{generation} by {_some(b)}" for generation, b in sorted(served.items()))
        text = f"Agents serve lists of different generations: {told}"
        yield Finding("list", text, tuple(bus.answers))


def _topologies_differ(bus: Bus, _past: Past) -> Iterator[Finding]:
    maps = _by_name((answer.state.topology, broker) for broker, answer in bus.answers.items())
    if len(maps) > 1:
        fewest = min(maps.values(), key=len)
        text = f"{_some(fewest)} has another topology than the other agents"
        yield Finding("topology", text, tuple(bus.answers))


def _broker_away(bus: Bus, _past: Past) -> Iterator[Finding]:
    for seen in bus.brokers:
        if seen.is_away:
            text = f"Broker {seen.broker} does not answer its agent: its messages are not delivered"
            yield Finding(seen.broker, text, (seen.broker,))


def _agent_down(bus: Bus, _past: Past) -> Iterator[Finding]:
    for seen in bus.brokers:
        if seen.fault and not seen.is_away:
            more = "connections stay, but drains and new subscriptions need the agent"
            text = f"The agent of {seen.broker} does not answer ({seen.fault}): {more}"
            yield Finding(seen.broker, f"{text}. No sum includes its figures")


def _skewed(bus: Bus, _past: Past) -> Iterator[Finding]:
    for seen in bus.brokers:
        if seen.answer and abs(seen.skew_ms or 0) > SKEW_MS_MAX:
            told = f"{abs(seen.skew_ms or 0) / 1000:.1f} s"
            yield Finding(seen.broker, f"The clock of {seen.broker} differs from ours by {told}")


def _balancer_down(bus: Bus, _past: Past) -> Iterator[Finding]:
    for lb in bus.balancers:
        if lb.fault:
            yield Finding(lb.url, f"The balancer {lb.url} does not answer: {lb.fault}")


def _sessions_full(bus: Bus, _past: Past) -> Iterator[Finding]:
    for lb in bus.balancers:
        for one in lb.servers:
            if one.limit and one.sessions > 0.9 * one.limit:
                full = f"{one.sessions} of {one.limit} connections that {lb.url} allows it"
                yield Finding(one.name, f"Broker {one.name} has {full}")


def _uneven(bus: Bus, past: Past) -> Iterator[Finding]:
    """Find brokers that got more than twice their share of the publishes of ten minutes."""
    earlier = past.before(bus.at_ms - UNEVEN_OVER_MS)
    then = counted(earlier) if earlier else {}
    got = dict[str, int]()
    for broker, answer in counted(bus).items():
        old = then.get(broker)
        is_same = old and old.life == answer.life and old.state.verdict == "ready"
        if old and is_same and answer.state.verdict == "ready" and answer.totals and old.totals:
            got[broker] = answer.totals.published - old.totals.published
    whole = sum(got.values())
    if whole >= UNEVEN_LEAST:
        for broker, count in got.items():
            if count * len(got) > UNEVEN_TIMES * whole:
                share = f"{100 * count // whole} % of all publishes of the last ten minutes"
                yield Finding(broker, f"Broker {broker}, one of {len(got)}, received {share}")


def _unknown_outcomes(bus: Bus, _past: Past) -> Iterator[Finding]:
    for client, count in bus.outcomes.unknown if bus.outcomes else ():
        ends = plural(count, "publish")
        yield Finding(client, f"{ends} of {client} had an unknown outcome in the last ten minutes")


def _no_outcomes(bus: Bus) -> str:
    if bus.outcomes is None:
        return "no Prometheus is configured"
    return f"{bus.outcomes.url}: {bus.outcomes.fault}" if bus.outcomes.fault else ""


def _no_balancers(bus: Bus) -> str:
    return "" if bus.balancers else "no balancer is configured"


def _memory_high(answer: Answer) -> str:
    room = answer.room
    high = room is not None and room.memory_used > 0.85 * room.memory_limit
    return f"Broker {answer.broker} is near its memory limit" if high else ""


def _certificate(answer: Answer) -> str:
    left_s = answer.state.certificate_s
    if left_s is None or left_s >= 14 * 86_400:
        return ""
    ends = "has ended" if left_s <= 0 else f"ends in {duration(left_s)}"
    return f"The certificate of {answer.broker} and its agent {ends}"


def _state(test: Callable[[Answer], object], text: str) -> Callable[[Bus, Past], Iterator[Finding]]:
    return _when(lambda a: text.format(b=a.broker, s=a.state) if test(a) else "")


def _rule(
    name: str,
    severity: Severity,
    for_s: int,
    manual: str,
    find: Callable[[Bus, Past], Iterable[Finding]],
    unwatched: Callable[[Bus], str] = lambda bus: "",
    covers: tuple[str, ...] = (),
    first: str = "",
) -> Rule:
    where = f"docs/OPERATIONS.md#{manual}"
    return Rule(
        name=name, severity=severity, for_s=for_s, manual=where, find=find,
        first=first or FIRST[manual], covers=covers, unwatched=unwatched,
    )  # fmt: skip


# What to do first, by the manual's section.
FIRST = {
    "a-broker-is-in-memory-alarm": "Look for clients with many connections or no prefetch: "
    "`rabbitmq-diagnostics memory_breakdown`. It ends by itself when consumers catch up.",
    "a-consumer-is-slow-or-gone": "Look at the application's log, then start it, give it more "
    "processes, or find what its handler waits for. Messages are kept until then.",
    "a-disk-is-full": "Bring back the consumers of what fills it, or drop parked messages that are "
    "no longer needed: `messagebus subscriptions list`, `messagebus parked list`.",
    "a-drain-is-stuck": "Run its playbook again: it prints what blocks the drain.",
    "a-gate-stays-shut": "`python -m ops topology diff` prints what is missing there.",
    "a-host-is-dead": "Look at the host, then the broker's service, then the network. If it will "
    "not come back: `python -m ops replace NAME --dry-run`. A broker without a mirror loses the "
    "messages on its disk.",
    "a-balancer-is-down": "Restart it: `systemctl restart haproxy` on its host.",
    "a-mirror-has-a-single-copy": "Bring back the other disk: `python -m ops drbd status` names "
    "what is missing. Do not restart this broker until then.",
    "a-policy-loses-messages": "Give the policy a pattern that excludes names beginning with `mb.`, or "
    "remove the key from it: `rabbitmqctl list_policies`, `rabbitmqctl list_operator_policies`.",
    "a-queue-vanished": "Find out in the broker's log who deleted it. The messages in it are lost.",
    "an-agent-is-dead": "Restart it: `systemctl restart messagebus-agent` on its host.",
    "certificates-expire": "Write new files over the old ones: `python -m ops provision`.",
    "connections-are-refused": "Raise `server_sessions_max` in the inventory, or add a broker.",
    "first-look": "Run `python -m lb status` and `python -m ops topology diff`.",
    "messages-are-parked": "Read the reasons, repair the cause, then redrive the messages: "
    "`messagebus parked redrive`.",
    "publishes-have-an-unknown-outcome": "Find out why the broker, or the connection to it, ended. The "
    "application may publish such a message again under the same id.",
    "split-brain": "Do nothing in haste: `python -m ops drbd status` shows what each side has.",
    "the-list-is-old": "`python -m consumer_lists push` writes the list to every node; a client "
    "that stays behind cannot reach any agent.",
}
_SLOW, _OLD_LIST, _ALARM = (
    "a-consumer-is-slow-or-gone",
    "the-list-is-old",
    "a-broker-is-in-memory-alarm",
)

TWINS: tuple[Rule, ...] = (
    _rule("BrokerDown", "page", 60, "a-host-is-dead", _broker_down, _no_balancers),
    _rule("BrokersFew", "page", 30, "first-look", _brokers_few, _no_balancers),
    _rule(
        *("BrokerAlarm", "page", 15, _ALARM),
        _state(lambda a: a.state.alarm, "Broker {b} is in {s.alarm}: its publishers leave it"),
    ),
    _rule("BrokerDiskFillsUp", "warn", 300, "a-disk-is-full", _disk_fills),
    _rule("BrokerMemoryHigh", "warn", 300, _ALARM, _when(_memory_high)),
    _rule(
        *("GateShut", "page", 180, "a-gate-stays-shut"),
        _state(
            lambda a: a.state.linked and not a.state.gate,
            "Broker {b} runs, but its topology is incomplete: {s.reason}",
        ),
    ),
    _rule(
        *("DrainStuck", "warn", 3600, "a-drain-is-stuck"),
        _state(
            lambda a: a.state.draining, "Broker {b} has been draining for an hour: {s.draining}"
        ),
    ),
    _rule(
        *("PolicyLosesMessages", "page", 0, "a-policy-loses-messages"),
        _state(lambda a: LOSES in a.state.reason, "Broker {b} is {s.reason}"),
    ),
    _rule("QueueLost", "page", 0, "a-queue-vanished", _when(_lost)),
    _rule("CertificateEnds", "warn", 900, "certificates-expire", _when(_certificate)),
    _rule(
        *("QueueWithoutConsumers", "page", 600, _SLOW, _unconsumed),
        covers=("OldestMessageGrowsOlder", "FallsBehind"),
    ),
    _rule(
        *("OldestMessageGrowsOlder", "warn", 300, _SLOW),
        lambda bus, past: _grows_older(bus, past, age_s=300),
        covers=("FallsBehind",),
    ),
    _rule("MessagesParked", "warn", 900, "messages-are-parked", _parked),
    _rule("ListOld", "warn", 60, _OLD_LIST, _list_old),
    _rule("ClientBehind", "warn", 180, _OLD_LIST, _behind),
    _rule("ListsDiffer", "warn", 120, _OLD_LIST, _lists_differ),
    _rule("AgentDown", "warn", 120, "an-agent-is-dead", _agent_down),
    _rule(
        *("MirrorSplitBrain", "page", 0, "split-brain"),
        _state(
            lambda a: a.state.mirror and a.state.mirror.alone,
            "The mirror of {b} is split, or an operator disconnected it: each host may lack writes",
        ),
    ),
    _rule(
        *("MirrorSingleCopy", "page", 60, "a-mirror-has-a-single-copy"),
        _state(
            lambda a: a.state.mirror and a.state.mirror.copies < 2,
            "{b} has a single copy of its messages: the loss of that disk loses them",
        ),
    ),
    _rule(
        *("UnknownOutcomes", "warn", 0, "publishes-have-an-unknown-outcome"),
        *(_unknown_outcomes, _no_outcomes),
    ),
    _rule("BalancerDown", "page", 30, "a-balancer-is-down", _balancer_down, _no_balancers),
    _rule(
        "BrokerSessionsFull", "warn", 60, "connections-are-refused", _sessions_full, _no_balancers
    ),
)
"""Each has the name, severity, time and manual of an alert in `ops/monitoring/alerts.yml`."""

MORE: tuple[Rule, ...] = (
    _rule(
        *("Coverage", "page", 15, "a-queue-vanished"),
        _state(
            lambda a: a.state.gate and a.state.missing_count,
            "{s.missing_count} of {s.entries} names are missing on {b}, which accepts publishes",
        ),
    ),
    _rule("BrokerAway", "page", 15, "a-host-is-dead", _broker_away),
    _rule(
        *("NoConsumerHere", "page", 60, _SLOW, _no_consumer_here),
        covers=("OldestMessageGrowsOlder", "FallsBehind"),
        first="Its consumers cannot reach that broker, or use an old list: run "
        "`messagebus doctor` on their host. Messages are kept until then.",
    ),
    _rule(
        "FallsBehind",
        "warn",
        120,
        _SLOW,
        lambda bus, past: _grows_older(bus, past, age_s=OLD_MS // 1000),
    ),
    _rule(
        *("ParkedGrows", "warn", 0, "messages-are-parked", _parked_grows),
        covers=("MessagesParked",),
    ),
    _rule("TopologiesDiffer", "warn", 60, "first-look", _topologies_differ),
    _rule("Uneven", "info", 0, "first-look", _uneven),
    _rule("ClocksDiffer", "warn", 60, "first-look", _skewed),
)
"""Rules that PromQL cannot say, or whose figures nobody exports."""

RULES = (*TWINS, *MORE)
