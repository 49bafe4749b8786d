"""The script of the demo: its actions in order, and the observations that each one waits for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx

from bench.audit import Audit, audit
from bench.demo.stage import (
    ADDED,
    DOWN_S,
    KILLED,
    REMOVED,
    SUBSCRIPTIONS,
    TOPIC,
    Stage,
    Step,
)
from bench.errors import BenchError
from bench.rows import Tail, read_events
from messagebus.recording.manifest import Manifest, write_whole
from messagebus.terminal import plural
from ops.errors import LocalFault

START_WITHIN_S = 120.0
# After the end of the input: for open publishes, and for messages in the brokers' queues.
PUBLISHED_WITHIN_S = 120.0
DELIVERED_WITHIN_S = 90.0
# After all deliveries: a time without a new one, after which brokers have no repeats left.
QUIET_S = 1.0
STOP_WITHIN_S = 60.0
HEALTH_TIMEOUT_S = 1.0
SERVES = "serves"


def start_load(stage: Stage) -> None:
    """Declare the topology, start all load processes and wait for them. Nothing is published yet."""
    wanted = [TOPIC, *(f"{TOPIC}/{name}" for name in SUBSCRIPTIONS), f"stream:{TOPIC}"]
    stage.run("declare", ["messagebus", "declare", *wanted], within_s=START_WITHIN_S, client=True)
    stage.workers.launch(stage.cluster.client_env())
    stage.watch(consumers=True, publishers=True)
    stage.wait(
        lambda: not stage.workers.missing(),
        within_s=START_WITHIN_S,
        what="all load processes running",
    )


def play(stage: Stage, on_killed: Callable[[], None]) -> None:
    """Let messages flow and do every step of the plan meanwhile. on_killed: called when a broker has died."""
    stage.view.states = dict.fromkeys(stage.cluster.names, SERVES)
    actions: dict[str, Callable[[Stage, Step], None]] = {
        "flow": _flow,
        "add": _add,
        "used": _used,
        "reload": _reload,
        "remove": _remove,
        "kill": _kill,
        "back": _back,
        "again": _again,
    }
    for step in stage.plan:
        with stage.planned(step):
            actions[step.name](stage, step)
        if step.name == "kill":
            on_killed()


def _flow(stage: Stage, step: Step) -> None:
    """Let messages flow, then wait until every broker takes publishes and serves every subscription."""
    stage.look(step.looks_s)
    for name in stage.cluster.names:
        _wait_used(stage, name, step)


def _add(stage: Stage, step: Step) -> None:
    stage.state(ADDED, "joins")
    with stage.incident("add", ADDED):
        _playbook(stage, step, "add", ADDED)
    stage.state(ADDED, SERVES)


def _used(stage: Stage, step: Step) -> None:
    _wait_used(stage, ADDED, step)
    stage.look(step.looks_s)


def _reload(stage: Stage, step: Step) -> None:
    with stage.incident("reload"):
        stage.run("lb-apply", ["lb", "apply", "--reload"], within_s=step.within_s)
    stage.look(step.looks_s)


def _remove(stage: Stage, step: Step) -> None:
    stage.state(REMOVED, "leaves")
    with stage.incident("remove", REMOVED):
        _playbook(stage, step, "remove", REMOVED)
    if _runs(stage, REMOVED):
        raise BenchError(f"{REMOVED} still runs after its removal")
    stage.state(REMOVED, "removed")


def _kill(stage: Stage, step: Step) -> None:
    stage.state(KILLED, "killed")
    with stage.incident("kill", KILLED):
        stage.cluster.kill(KILLED)
    stage.look(DOWN_S)


def _back(stage: Stage, step: Step) -> None:
    stage.state(KILLED, "boots")
    with stage.incident("start", KILLED):
        stage.run("ops-start", ["ops", "local", "start", KILLED], within_s=step.within_s)
        stage.note(f"waiting until {KILLED} may take publishes")
        health = f"http://{stage.cluster.node(KILLED).agent}/health"
        stage.wait(lambda: _is_ready(health), within_s=step.within_s, what=f"{KILLED} ready")
    stage.state(KILLED, SERVES)


def _again(stage: Stage, step: Step) -> None:
    """Wait until the killed broker is used again after its return."""
    _wait_used(stage, KILLED, step)
    stage.look(step.looks_s)


def wait_published(stage: Stage) -> None:
    """Wait until every publisher has sent everything and knows the outcome of each publish."""
    stage.wait(
        lambda: not stage.children.running(stage.workers.publishers),
        within_s=PUBLISHED_WITHIN_S,
        what="the publishers' end",
    )
    stage.watch(publishers=False)


def wait_delivered(stage: Stage) -> None:
    """Wait until every confirmed id was delivered to every subscription, and no more deliveries come.

    Gives up when nothing new has come for DELIVERED_WITHIN_S: the audit reports what is missing.
    """
    published, delivered = Tail(stage.folder, "published"), Tail(stage.folder, "delivered")
    missing: dict[str, set[str]] = {name: set() for name in SUBSCRIPTIONS}
    for row in published.read():
        if row["outcome"] == "confirmed":
            for ids in missing.values():
                ids.add(row["message_id"])
    newest_s = time.monotonic()

    def all_there() -> bool:
        nonlocal newest_s
        for row in delivered.read():
            newest_s = time.monotonic()
            missing[row["subscription"]].discard(row["message_id"])
        left = sum(map(len, missing.values()))
        stage.view.count = f"{plural(left, 'delivery')} to come" if left else ""
        quiet_s = time.monotonic() - newest_s
        return quiet_s > (DELIVERED_WITHIN_S if left else QUIET_S)

    stage.wait(all_there, within_s=DELIVERED_WITHIN_S * 4, what="the last deliveries")


def stop_consumers(stage: Stage) -> None:
    """Ask the consumers to answer their open deliveries and to end; wait for their end."""
    stage.watch(consumers=False)
    consumers = stage.workers.consumers
    stage.children.terminate(consumers)
    stage.wait(
        lambda: not stage.children.running(consumers),
        within_s=STOP_WITHIN_S,
        what="the consumers' end",
    )
    stage.children.check(consumers, may_end=True)


def judge(stage: Stage, manifest: Manifest) -> Audit:
    """Audit the run, and write the audit beside the events."""
    result = audit(manifest, read_events(stage.folder, manifest))
    write_whole(stage.folder / "audit.json", json.dumps(result.as_json(), indent=1))
    return result


def _playbook(stage: Stage, step: Step, verb: str, name: str) -> None:
    stage.run(f"ops-{verb}", ["ops", verb, name, "--yes"], within_s=step.within_s)


def _wait_used(stage: Stage, name: str, step: Step) -> None:
    """Wait until this broker confirms another publish, and delivers another message to every subscription."""
    confirmed = stage.confirmed_by(name)
    delivered = {each: stage.delivered_by(name, each) for each in SUBSCRIPTIONS}
    stage.note(f"waiting for publishes to {name} and deliveries from it")
    stage.wait(
        lambda: (
            stage.confirmed_by(name) > confirmed
            and all(stage.delivered_by(name, each) > delivered[each] for each in SUBSCRIPTIONS)
        ),
        within_s=step.within_s,
        what=f"publishes to {name} and deliveries from it",
    )


def _runs(stage: Stage, name: str) -> bool:
    try:
        return stage.cluster.process_of(name) is not None
    except LocalFault:
        return False


def _is_ready(health: str) -> bool:
    try:
        return httpx.get(health, timeout=HEALTH_TIMEOUT_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
