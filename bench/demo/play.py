"""The script of the demo: its steps in order, and the observations that each one waits for.

Different code makes two audits, ours and Spark's, from the same files of one run: they must agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx

from bench.audit import Audit, audit
from bench.audit_report import disagreements, read_report
from bench.demo import page
from bench.demo.screen import Step
from bench.demo.stage import BROKERS, SUBSCRIPTIONS, TOPIC, Stage
from bench.errors import BenchError
from bench.rows import read_events
from messagebus.commands.exits import Exit
from messagebus.files import replace_file
from messagebus.recording.manifest import Manifest
from messagebus.terminal import plural
from ops.errors import LocalFault

ADDED, REMOVED, KILLED = "mb4", "mb1", "mb2"
# Seconds that the killed broker stays down.
DOWN_S = 10.0
HEALTH_TIMEOUT_S = 1.0
SERVES, REPORT = "serves", "report"

Action = Callable[[Stage], object]


def script(looks_s: float) -> list[tuple[Step, Action]]:
    """Return the steps with what they do. looks_s: seconds for a person to see a state."""
    flows_s = looks_s + 1.5
    return [
        (Step(f"a cluster of {BROKERS} brokers and HAProxy starts"), lambda s: s.cluster.up()),
        (Step("publishers and consumers start"), _load),
        (Step(f"messages flow over {BROKERS} brokers", flows_s), _flow),
        (Step(f"{ADDED} is added by the playbook", 26), _add),
        (Step(f"{ADDED} takes publishes and is consumed", 1.5), lambda s: _wait_used(s, ADDED)),
        (Step("HAProxy reloads", 3), _reload),
        (
            Step(f"publishers leave {REMOVED}, and the live job reads its stream to the end", 6),
            _leave,
        ),
        (Step(f"{REMOVED} is removed: drained to zero, stopped", 22), _remove),
        (Step(f"{KILLED} is killed (SIGKILL) and stays down for {DOWN_S:.0f} s", DOWN_S), _kill),
        (Step(f"{KILLED} comes back", 8), _back),
        (Step("messages flow over all brokers again", flows_s), lambda s: _wait_used(s, KILLED)),
        (Step("the rest is published, all is delivered"), _rest),
    ]


def play(stage: Stage, looks_s: float) -> tuple[Audit, list[str]]:
    """Do the whole run. Returns our audit, and its differences from Spark's.

    Raises BenchError and LocalFault.
    """
    actions, judging = script(looks_s), Step("audit and Spark report")
    stage.view.steps = [*(step for step, _ in actions), judging]
    for step, action in actions:
        with stage.step(step):
            action(stage)
    with stage.step(judging):
        return _judged(stage, stage.save(complete=True))


def _load(stage: Stage) -> None:
    """Declare the topology, and start all clients, the monitor and the live Spark job."""
    wanted = [TOPIC, *(f"{TOPIC}/{name}" for name in SUBSCRIPTIONS), f"stream:{TOPIC}"]
    stage.run(["messagebus", "declare", *wanted], client=True)
    stage.workers.launch(stage.cluster.client_env())
    page.show(stage)
    page.follow(stage)
    stage.workers.meet()
    stage.view.states |= dict.fromkeys(stage.cluster.names, SERVES)
    stage.save()


def _flow(stage: Stage) -> None:
    """Let messages flow, then wait until every broker takes publishes and serves every subscription."""
    stage.look()
    for name in stage.cluster.names:
        _wait_used(stage, name, looks_s=0)


def _add(stage: Stage) -> None:
    stage.view.states[ADDED] = "joins"
    with stage.incident("add", ADDED):
        stage.run(["ops", "add", ADDED, "--yes"])
    stage.view.states[ADDED] = SERVES


def _reload(stage: Stage) -> None:
    with stage.incident("reload"):
        stage.run(["lb", "apply", "--reload"])
    stage.look()


def _leave(stage: Stage) -> None:
    """Have publishers leave, and the live job read what they left: a stream is removed with its broker."""
    stage.view.states[REMOVED] = "leaves"
    stage.run(["consumer_lists", "drain", stage.view.addresses[REMOVED]])
    stage.run(["consumer_lists", "push"])
    stage.look()
    page.read_to_the_end(stage, REMOVED)


def _remove(stage: Stage) -> None:
    with stage.incident("remove", REMOVED):
        stage.run(["ops", "remove", REMOVED, "--yes"])
    try:
        if stage.cluster.process_of(REMOVED) is not None:
            raise BenchError(f"{REMOVED} still runs after its removal")
    except LocalFault:
        pass  # the cluster no longer has it
    stage.view.states[REMOVED] = "removed"


def _kill(stage: Stage) -> None:
    stage.view.states[KILLED] = "killed"
    with stage.incident("kill", KILLED):
        stage.cluster.kill(KILLED)
    page.photograph(stage)
    stage.look(DOWN_S)


def _back(stage: Stage) -> None:
    stage.view.states[KILLED] = "boots"
    with stage.incident("start", KILLED):
        stage.run(["ops", "local", "start", KILLED])
        stage.note(f"waiting until {KILLED} may take publishes")
        health = f"http://{stage.cluster.node(KILLED).agent}/health"
        stage.wait(lambda: _is_ready(health), f"{KILLED} is ready")
    stage.view.states[KILLED] = SERVES


def _is_ready(health: str) -> bool:
    try:
        return httpx.get(health, timeout=HEALTH_TIMEOUT_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _wait_used(stage: Stage, name: str, looks_s: float | None = None) -> None:
    """Wait until this broker confirms another publish, and delivers another message to every subscription."""
    before = stage.used(name)
    what = f"publishes to {name} and deliveries from it"
    stage.note(f"waiting for {what}")
    stage.wait(
        lambda: all(now > had for now, had in zip(stage.used(name), before, strict=True)), what
    )
    stage.look(looks_s)


def _rest(stage: Stage) -> None:
    """Wait for every outcome and every delivery, and end all clients."""
    stage.workers.wait_published()
    stage.workers.wait_delivered(lambda left: _to_come(stage, left))
    stage.workers.end_consumers()
    page.end_live(stage)


def _to_come(stage: Stage, left: int) -> None:
    stage.view.note = f"{plural(left, 'delivery')} to come" if left else ""


def _judged(stage: Stage, manifest: Manifest) -> tuple[Audit, list[str]]:
    out = stage.folder / REPORT
    argv = ["spark", "report", "--events", str(stage.folder), "--out", str(out)]
    spark = stage.start("spark", argv)
    stage.cluster.down()
    result = audit(manifest, read_events(stage.folder, manifest))
    replace_file(stage.folder / "audit.json", json.dumps(result.as_json(), indent=1))
    stage.wait(lambda: spark.exit_code is not None, "the Spark report", silent=spark)
    # It ends with FOUND when its audit does not hold; ours fails then as well.
    if spark.exit_code not in (Exit.DONE, Exit.FOUND) or not (out / "audit.json").exists():
        raise BenchError(f"the Spark report failed: {spark.last_line()} ({spark.log})")
    return result, disagreements(result, read_report(out))


def places(stage: Stage) -> dict[str, Path]:
    """Return what the run has left for a person: description -> file or folder."""
    found = {"report": stage.folder / REPORT / "report.html", "events": stage.folder}
    if (live := stage.folder / page.LIVE / "live.html").exists():
        found[f"the live job's page, {plural(page.messages_read(stage).total(), 'message')}"] = live
    if picture := page.into_report(stage, stage.folder / REPORT):
        found["the monitor's page, with a broker killed"] = picture
    return found
