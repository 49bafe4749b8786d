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
from bench.demo.live_run import BROKERS, SUBSCRIPTIONS, TOPIC, LiveRun
from bench.demo.screen import Step
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

Action = Callable[[LiveRun], object]


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


def play(run: LiveRun, looks_s: float) -> tuple[Audit, list[str]]:
    """Do the whole run. Returns our audit, and its differences from Spark's.

    Raises BenchError and LocalFault.
    """
    actions, judging = script(looks_s), Step("audit and Spark report")
    run.view.steps = [*(step for step, _ in actions), judging]
    for step, action in actions:
        with run.step(step):
            action(run)
    with run.step(judging):
        return _judged(run, run.save(complete=True))


def _load(run: LiveRun) -> None:
    """Declare the topology, and start all clients, the monitor and the live Spark job."""
    wanted = [TOPIC, *(f"{TOPIC}/{name}" for name in SUBSCRIPTIONS), f"stream:{TOPIC}"]
    run.run(["messagebus", "declare", *wanted], client=True)
    run.workers.launch(run.cluster.client_env())
    page.show(run)
    page.follow(run)
    run.workers.meet()
    run.view.states |= dict.fromkeys(run.cluster.names, SERVES)
    run.save()


def _flow(run: LiveRun) -> None:
    """Let messages flow, then wait until every broker takes publishes and serves every subscription."""
    run.look()
    for name in run.cluster.names:
        _wait_used(run, name, looks_s=0)


def _add(run: LiveRun) -> None:
    run.view.states[ADDED] = "joins"
    with run.incident("add", ADDED):
        run.run(["ops", "add", ADDED, "--yes"])
    run.view.states[ADDED] = SERVES


def _reload(run: LiveRun) -> None:
    with run.incident("reload"):
        run.run(["lb", "apply", "--reload"])
    run.look()


def _leave(run: LiveRun) -> None:
    """Have publishers leave, and the live job read what they left: a stream is removed with its broker."""
    run.view.states[REMOVED] = "leaves"
    run.run(["consumer_lists", "drain", run.view.addresses[REMOVED]])
    run.run(["consumer_lists", "push"])
    run.look()
    page.read_to_the_end(run, REMOVED)


def _remove(run: LiveRun) -> None:
    with run.incident("remove", REMOVED):
        run.run(["ops", "remove", REMOVED, "--yes"])
    try:
        if run.cluster.process_of(REMOVED) is not None:
            raise BenchError(f"{REMOVED} still runs after its removal")
    except LocalFault:
        pass  # the cluster no longer has it
    run.view.states[REMOVED] = "removed"


def _kill(run: LiveRun) -> None:
    run.view.states[KILLED] = "killed"
    with run.incident("kill", KILLED):
        run.cluster.kill(KILLED)
    page.photograph(run)
    run.look(DOWN_S)


def _back(run: LiveRun) -> None:
    run.view.states[KILLED] = "boots"
    with run.incident("start", KILLED):
        run.run(["ops", "local", "start", KILLED])
        run.note(f"waiting until {KILLED} may take publishes")
        health = f"http://{run.cluster.node(KILLED).agent}/health"
        run.wait(lambda: _is_ready(health), f"{KILLED} is ready")
    run.view.states[KILLED] = SERVES


def _is_ready(health: str) -> bool:
    try:
        return httpx.get(health, timeout=HEALTH_TIMEOUT_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _wait_used(run: LiveRun, name: str, looks_s: float | None = None) -> None:
    """Wait until this broker confirms another publish, and delivers another message to every subscription."""
    before = run.used(name)
    what = f"publishes to {name} and deliveries from it"
    run.note(f"waiting for {what}")
    run.wait(lambda: all(now > had for now, had in zip(run.used(name), before, strict=True)), what)
    run.look(looks_s)


def _rest(run: LiveRun) -> None:
    """Wait for every outcome and every delivery, and end all clients."""
    run.workers.wait_published()
    run.workers.wait_delivered(lambda left: _to_come(run, left))
    run.workers.end_consumers()
    page.end_live(run)


def _to_come(run: LiveRun, left: int) -> None:
    run.view.note = f"{plural(left, 'delivery')} to come" if left else ""


def _judged(run: LiveRun, manifest: Manifest) -> tuple[Audit, list[str]]:
    out = run.folder / REPORT
    argv = ["spark", "report", "--events", str(run.folder), "--out", str(out)]
    spark = run.start("spark", argv)
    run.cluster.down()
    result = audit(manifest, read_events(run.folder, manifest))
    replace_file(run.folder / "audit.json", json.dumps(result.as_json(), indent=1))
    run.wait(lambda: spark.exit_code is not None, "the Spark report", silent=spark)
    # It ends with FOUND when its audit does not hold; ours fails then as well.
    if spark.exit_code not in (Exit.DONE, Exit.FOUND) or not (out / "audit.json").exists():
        raise BenchError(f"the Spark report failed: {spark.last_line()} ({spark.log})")
    return result, disagreements(result, read_report(out))


def places(run: LiveRun) -> dict[str, Path]:
    """Return what the run has left for a person: description -> file or folder."""
    found = {"report": run.folder / REPORT / "report.html", "events": run.folder}
    if (live := run.folder / page.LIVE / "live.html").exists():
        found[f"the live job's page, {plural(page.messages_read(run).total(), 'message')}"] = live
    if picture := page.into_report(run, run.folder / REPORT):
        found["the monitor's page, with a broker killed"] = picture
    return found
