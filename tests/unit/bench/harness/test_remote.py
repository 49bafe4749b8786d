"""A load process on another host, which a process of this one stands for: its files, its clocks, its ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import environment
from bench.environment import CHECKOUT, code
from bench.errors import BenchError
from bench.harness.remote import Clock, Relay, about_hosts, save_clock
from bench.harness.workers import OVER, PROFILE, Start, open_ended, say_over
from inventory.shell import ssh_command

# What a load process would be: it leaves its files, and repeats a variable and a file that one names.
REMOTE = """
import base64, json, sys, time
from bench.environment import code
def say(**line): print(json.dumps(line), flush=True)
wanted = json.loads(sys.stdin.readline())
say(code={code}, commit="abc", host="there")
for text in sys.stdin:
    line = json.loads(text)
    if "ping" in line:
        say(monotonic_ns=time.monotonic_ns() + {ahead}, wall_ns=time.time_ns() - 5_000_000_000)
    elif line.get("name") == "start.json":
        part = json.dumps([wanted["env"], wanted["files"], json.loads(line["text"])])
        say(name={name!r}, base64=base64.b64encode(part.encode()).decode())
    elif line.get("name") == "over.json":
        say(code=3)
"""
AHEAD_NS = 10**15


def channel(
    *, code: str = "code()", name: str = "parts/publisher-0.json", ahead: int = AHEAD_NS
) -> Sequence[str]:
    return [sys.executable, "-c", REMOTE.format(code=code, name=name, ahead=ahead)]


def ready_run(folder: Path) -> Start:
    """Write what a coordinator writes of a run that has a start and is over."""
    profile = open_ended("p", ["t/s"], publishers=1, rate_per_s=1, body_bytes=100)
    (folder / PROFILE).write_text(json.dumps(profile.as_json()))
    start = Start(at_wall_ns=7, host="here", wall_minus_monotonic_ns=10**18)
    (folder / "start.json").write_text(json.dumps({
        "at_wall_ns": 7, "host": "here", "wall_minus_monotonic_ns": 10**18
    }))  # fmt: skip
    say_over(folder)
    return start


def test_a_process_elsewhere_has_the_settings_and_leaves_its_files_here(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("let me in")
    folder = tmp_path / "run"
    folder.mkdir()
    start = ready_run(folder)
    env = {"A": "1", "MESSAGEBUS_PASSWORD_FILE": str(secret)}
    assert Relay("b.example", folder, channel()).run("publisher", 0, env) == 3
    values, files, there = json.loads((folder / "parts" / "publisher-0.json").read_text())
    assert (values, files) == ({"A": "1"}, {"MESSAGEBUS_PASSWORD_FILE": "let me in"})
    assert (there["at_wall_ns"], there["host"]) == (7, "there")
    clock = Clock(**json.loads((folder / "clocks" / "publisher-0.json").read_text()))
    assert abs(clock.ahead_ns - AHEAD_NS) <= clock.error_ns
    assert there["wall_minus_monotonic_ns"] == start.wall_minus_monotonic_ns - clock.ahead_ns
    (line,) = about_hosts(folder)["load_hosts"]
    assert line.startswith("b.example: publisher-0; its clock -"), "five seconds behind"


def test_times_of_another_host_become_those_of_ours() -> None:
    start = Start(at_wall_ns=0, host="here", wall_minus_monotonic_ns=1_000)
    clock = Clock(host="b", ahead_ns=300, wall_ahead_ns=0, error_ns=1)
    here_ns = 50
    assert clock.there(start, "b").wall_minus_monotonic_ns + (here_ns + 300) == 1_000 + here_ns


def test_the_report_has_the_worst_of_each_host(tmp_path: Path) -> None:
    assert about_hosts(tmp_path) == {}, "all load was here"
    for number, (host, error, drift) in enumerate([("a", 10, 5), ("b", 7, 0), ("a", 40, -9)]):
        clock = Clock(
            host=host, ahead_ns=1, wall_ahead_ns=2_000_000, error_ns=error * 1_000, drift_ns=drift
        )
        save_clock(tmp_path, f"publisher-{number}", clock)
    first, second = about_hosts(tmp_path)["load_hosts"]
    assert first == (
        "a: publisher-0, publisher-2; its clock +2.000 ms, its times corrected within 0.040 ms, "
        "changed by -0.000 ms during the run"
    )
    assert second.startswith("b: publisher-1;")


def test_a_clock_that_changed_during_the_run_makes_its_times_as_much_less_certain(
    tmp_path: Path,
) -> None:
    clock = Clock(host="a", ahead_ns=1, wall_ahead_ns=0, error_ns=40_000, drift_ns=-2_000_000)
    save_clock(tmp_path, "publisher-0", clock)
    (line,) = about_hosts(tmp_path)["load_hosts"]
    assert line.endswith("corrected within 2.040 ms, changed by -2.000 ms during the run")


def test_a_host_that_falls_silent_is_lost_soon() -> None:
    argv = " ".join(ssh_command("b.example", ["true"]))
    assert "-o ServerAliveInterval=3 -o ServerAliveCountMax=5" in argv


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (channel(code="'1234'"), "its checkout is another one: commit abc, code 1234; here commit"),
        (channel(name="parts/../../x"), "sends a file that no load process has"),
        (channel(name="/etc/x"), "sends a file that no load process has"),
        (["sh", "-c", "echo no route >&2; exit 255"], "the connection has ended: no route"),
        (["sh", "-c", "echo Welcome"], r"not a line of bench remote: b'Welcome"),
    ],
)
def test_a_host_that_is_lost_or_another_one_is_one_line(
    tmp_path: Path, made: Sequence[str], told: str
) -> None:
    ready_run(tmp_path)
    with pytest.raises(BenchError, match=f"^b.example: .*{told}"):
        Relay("b.example", tmp_path, made).run("publisher", 0, {})
    assert not (tmp_path.parent / "x").exists()
    assert (tmp_path / OVER).exists()


def test_a_remote_end_that_is_killed_leaves_its_folder_to_the_next_one(tmp_path: Path) -> None:
    def begun() -> subprocess.Popen[str]:
        """Start one that has its folder, and waits for a profile."""
        pipe = subprocess.PIPE
        argv = [sys.executable, "-m", "bench", "remote"]
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        one = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=env, cwd=CHECKOUT, text=True)
        assert one.stdin
        assert one.stdout
        print(json.dumps({"kind": "publisher", "number": 0}), file=one.stdin, flush=True)
        assert json.loads(one.stdout.readline())["code"] == code()
        return one

    def folders() -> set[str]:
        return {path.name.rpartition("-")[0] for path in tmp_path.iterdir()}

    def end(one: subprocess.Popen[str], number: signal.Signals) -> None:
        one.send_signal(number)
        one.communicate(timeout=60)

    others = {"mb-load-of", "mb-load-0"}
    (tmp_path / "mb-load-of-somebody").mkdir()
    (tmp_path / "mb-load-0-link").symlink_to(tmp_path)
    killed, living = begun(), begun()
    end(killed, signal.SIGKILL)
    last = begun()
    assert folders() == others | {f"mb-load-{one.pid}" for one in (living, last)}
    end(living, signal.SIGTERM)
    end(last, signal.SIGHUP)
    assert folders() == others


def test_a_changed_file_of_a_checkout_makes_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "CHECKOUT", tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "a.py").write_text("x = 1")
    before = environment.code()
    (tmp_path / "notes.txt").write_text("no code")
    assert environment.code() == before
    (tmp_path / "bench" / "a.py").write_text("x = 2")
    changed = environment.code()
    (tmp_path / "bench" / "a.py").rename(tmp_path / "bench" / "b.py")
    assert len({before, changed, environment.code()}) == 3
