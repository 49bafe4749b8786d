"""Several balancers: real HAProxies, of which one is reached over real SSH, by the commands of operators."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inventory.inventory import Inventory, load
from lb import runtime
from lb.__main__ import cli
from lb.apply import prepare_start, save_state
from lb.runtime import STATES_BY_AGENT, ServerState
from tests.support.eventually import FACTOR, eventually
from tests.support.haproxy import Rig
from tests.support.sshd import Sshd, ssh_server

KEEPER = Path(__file__).resolve().parents[2] / "lb" / "keeper.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def rig(server: Sshd, tmp_path: Path) -> Iterator[Rig]:
    """Three nodes behind three balancers: two of this machine, the third behind SSH."""
    with ExitStack() as stack:
        rig = Rig(tmp_path, stack, nodes=3, fronts=3, hosts={"lb3": server.address})
        try:
            yield rig
        finally:
            rig.kill()


def lb(rig: Rig, *words: str) -> Result:
    argv = ["--inventory", str(rig.folder / "inventory.toml"), *words]
    return CliRunner().invoke(cli, argv, prog_name="python -m lb")


@pytest.fixture(autouse=True)
def settings(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEBUS_SSH_CONFIG", str(server.config))


def everywhere(read: Inventory, name: str) -> list[ServerState]:
    return [runtime.servers(balancer.socket)[name] for balancer in read.balancers]


def started(rig: Rig, brokers: int = 2) -> Inventory:
    read = rig.inventory(brokers)
    rig.start(read)
    eventually(
        lambda: all(
            each.verdict == "up" and each.agent in STATES_BY_AGENT
            for name in (f"mb{number}" for number in range(1, brokers + 1))
            for each in everywhere(read, name)
        ),
        within_s=60,
    )
    return read


@pytest.mark.guarantee("several-balancers")
def test_an_inventory_is_applied_to_one_after_the_other_and_read_back(rig: Rig) -> None:
    before = started(rig)
    pids = [runtime.process(balancer.socket).pid for balancer in before.balancers]
    after = rig.inventory(3)
    shown = lb(rig, "status").stdout
    assert shown.count("differs from the inventory") == 3
    applied = lb(rig, "apply")
    assert applied.exit_code == 0, applied.stderr
    now = [runtime.process(balancer.socket).pid for balancer in after.balancers]
    assert applied.stdout.splitlines() == [
        f"{balancer.name}: reloaded: process {pid} serves"
        for balancer, pid in zip(after.balancers, now, strict=True)
    ]
    assert set(now).isdisjoint(pids)
    assert [len(runtime.servers(balancer.socket)) for balancer in after.balancers] == [3, 3, 3]
    assert after.balancers[2].config.stat().st_mode & 0o777 == 0o600
    assert lb(rig, "apply").stdout == "lb1: nothing to do\nlb2: nothing to do\nlb3: nothing to do\n"
    assert lb(rig, "check").stdout == "good: 3 brokers of rig, 3 balancers\n"


@pytest.mark.guarantee("several-balancers")
def test_a_drain_is_seen_on_every_balancer(rig: Rig) -> None:
    read = started(rig)
    drained = lb(rig, "drain", "mb1")
    assert drained.exit_code == 0, drained.stderr
    assert [line.split()[:3] for line in drained.stdout.splitlines()] == [
        ["lb1:", "mb1", "drain"],
        ["lb2:", "mb1", "drain"],
        ["lb3:", "mb1", "drain"],
    ]
    assert [each.verdict for each in everywhere(read, "mb1")] == ["drain"] * 3
    assert lb(rig, "apply", "--reload").exit_code == 0
    assert [each.verdict for each in everywhere(read, "mb1")] == ["drain"] * 3
    assert lb(rig, "ready", "mb1").exit_code == 0
    assert [each.verdict for each in everywhere(read, "mb1")] == ["up"] * 3


def test_a_broker_whose_agent_is_dead_is_ruled_by_hand_on_every_balancer(rig: Rig) -> None:
    read = started(rig)
    for words in (("maint", "mb1"), ("drain", "mb1", "--by-hand")):
        refused = lb(rig, *words)
        assert refused.exit_code == 1
        assert re.search(r"the agent of mb1 answers lb\d and would undo it", refused.stderr)
    rig.agents[0].mute = True
    eventually(
        lambda: not any(each.agent in STATES_BY_AGENT for each in everywhere(read, "mb1")),
        within_s=60,
    )
    for words, verdict, weight in (
        (("drain", "mb1", "--by-hand"), "drain", 100),
        (("ready", "mb1", "--by-hand"), "up", 100),
        (("maint", "mb1"), "maint", 100),
        (("maint", "mb1", "--off"), "up", 100),
        (("weight", "mb1", "30"), "up", 30),
    ):
        done = lb(rig, *words)
        assert done.exit_code == 0, done.stderr
        eventually(
            lambda verdict=verdict, weight=weight: (  # type: ignore[misc]
                {(each.verdict, each.weight) for each in everywhere(read, "mb1")}
                == {(verdict, weight)}
            ),
            within_s=60,
            what=f"{words}",
        )


def test_a_balancer_that_is_down_is_told_and_the_others_follow(rig: Rig) -> None:
    read = started(rig)
    third = rig.masters.pop("lb3")
    third.terminate()
    third.wait(timeout=60 * FACTOR)
    drained = lb(rig, "drain", "mb1", "--within-s", "3")
    assert drained.exit_code == 6
    assert "mb1 is not seen as drain after 3 s: lb3: HAProxy does not show it" in drained.stderr
    assert drained.stderr.count("\n") == 1
    assert [runtime.servers(balancer.socket)["mb1"].verdict for balancer in read.balancers[:2]] == [
        "drain",
        "drain",
    ]
    shown = lb(rig, "status", "--json")
    assert shown.exit_code == 3
    balancers = json.loads(shown.stdout)["balancers"]
    assert [bool(each["fault"]) for each in balancers] == [False, False, True]


@pytest.mark.guarantee("playbooks-beside-the-dead")
def test_a_balancer_that_comes_back_with_what_it_knew_sends_nobody_to_a_broker_that_drains_since(
    rig: Rig,
) -> None:
    """Its agent's answer arrives before the gate check passes: here because that takes a while."""
    read = started(rig)
    save_state(read)
    rig.kill()
    for front in read.more:
        prepare_start(read.at(front))
        rig.launch(read.at(front))
        rig.wait(read.at(front), within_s=60, mb1="up", mb2="up")
    drained = lb(rig, "drain", "mb1", "--without", "lb1")
    assert drained.exit_code == 0, drained.stderr
    files = ["--file", str(read.balancer.state_file), "--lock", str(read.balancer.lock_file)]
    cold = ["--cold", "--config", str(read.balancer.config)]
    subprocess.run(["/usr/bin/python3", "-I", str(KEEPER), *files, *cold], check=True)
    stop = threading.Event()

    def knock() -> None:
        while not stop.is_set():
            with suppress(OSError), rig.client():
                pass

    with ThreadPoolExecutor(1) as pool:
        knocking = pool.submit(knock)
        try:
            rig.brokers[0].frozen = True
            rig.launch(read)
            eventually(lambda: rig.servers(read)["mb1"].drained, within_s=60)
            rig.brokers[0].frozen = False
            rig.wait(read, within_s=60, mb1="drain", mb2="up")
            eventually(lambda: rig.servers(read)["mb2"].sessions_total, within_s=60)
        finally:
            stop.set()
        knocking.result()
    assert rig.servers(read)["mb1"].sessions_total == 0


def test_a_host_that_ssh_does_not_reach_leaves_all_as_they_were(rig: Rig) -> None:
    started(rig)
    rig.hosts = {"lb3": "root@127.0.0.1:1"}
    after = rig.inventory(3)
    applied = lb(rig, "apply")
    assert applied.exit_code == 1
    assert applied.stderr.startswith("lb: lb3: ")
    assert "SSH: " in applied.stderr
    assert [len(runtime.servers(balancer.socket)) for balancer in after.balancers] == [2, 2, 2]


@pytest.mark.guarantee("several-balancers")
def test_one_that_does_not_serve_gets_back_what_it_had_and_the_next_is_not_touched(
    rig: Rig, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second balancer's master ignores its orders, as one that hangs would."""
    before = started(rig)
    rig.inventory(3)
    monkeypatch.setattr("lb.apply.RELOAD_WITHIN_S", 2 * FACTOR)
    pid_file = before.balancers[1].master_pid_file
    pid = pid_file.read_text()
    # A process with the right command line that does not reload.
    script = f"import time; time.sleep(300)  # {before.balancers[1].config}"
    argv = ["haproxy", "-c", script, str(before.balancers[1].config)]
    stand_in = subprocess.Popen(argv, executable=sys.executable)
    pid_file.write_text(str(stand_in.pid))
    try:
        applied = lb(rig, "apply")
    finally:
        stand_in.kill()
        stand_in.wait()
        pid_file.write_text(pid)
    assert applied.exit_code == 1
    assert applied.stdout.startswith("lb1: reloaded: ")
    assert "lb2: the new configuration did not serve" in applied.stderr
    assert applied.stderr.endswith("the one before is back; not touched: lb3\n")
    monkeypatch.undo()
    monkeypatch.setenv("MESSAGEBUS_SSH_CONFIG", str(server.config))
    assert [len(runtime.servers(balancer.socket)) for balancer in before.balancers] == [3, 2, 2]
    assert lb(rig, "apply").exit_code == 0
    assert [len(runtime.servers(balancer.socket)) for balancer in before.balancers] == [3, 3, 3]


def test_the_keeper_of_a_host_brings_a_drain_over_a_crash(rig: Rig) -> None:
    read = started(rig).at(rig.inventory(2).balancers[2])
    third = read.balancer
    files = ["--file", str(third.state_file), "--lock", str(third.lock_file)]
    # As its host would run it: with the system's Python, without this kit.
    keeper = ["/usr/bin/python3", "-I", str(KEEPER), *files]
    saving = subprocess.Popen([*keeper, "--socket", str(third.socket), "--every", "0.1"])
    try:
        rig.agents[0].draining = True
        rig.wait(read, mb1="drain")
        saved = third.state_file.stat().st_mtime_ns
        eventually(lambda: third.state_file.stat().st_mtime_ns > saved, within_s=60)
        assert lb(rig, "apply", "--reload").exit_code == 0
    finally:
        saving.terminate()
        saving.wait(timeout=60 * FACTOR)
    rig.kill()
    rig.agents[0].mute = rig.brokers[1].frozen = True
    cold = ["--cold", "--config", str(third.config)]
    subprocess.run([*keeper, *cold], check=True, timeout=60 * FACTOR)
    rig.launch(read)
    assert rig.servers(read)["mb1"].drained
    assert rig.servers(read)["mb2"].verdict == "down"
    rig.wait(read, within_s=60, mb1="drain")


def test_what_is_shown_fits_a_terminal(rig: Rig) -> None:
    started(rig)
    shown = lb(rig, "status").stdout
    assert all(len(line) <= 160 for line in shown.splitlines())
    rows = [line.split() for line in shown.splitlines() if "L7OK" in line]
    assert [row[0] for row in rows] == ["mb1", "lb2", "lb3", "mb2", "lb2", "lb3"]
    assert load(rig.folder / "inventory.toml").more
