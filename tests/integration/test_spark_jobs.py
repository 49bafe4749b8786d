"""Jobs as processes: how they are started, and how they end when they cannot finish."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.events import Faults, write_run
from tests.support.eventually import FACTOR, eventually

ROOT = Path(__file__).resolve().parents[2]
JOBS = sorted(
    path.stem
    for path in (ROOT / "spark" / "jobs").glob("*.py")
    if path.stem not in ("__init__", "frame", "words")
)
JOB_WITHIN_S = 300 * FACTOR
STARTED_WITHIN_S = 120
# Less than the tables of a small run, more than what Java keeps beside them.
DISK_KB = 40
SETTINGS = """
from spark.session import QUICK, spark_session
session = spark_session("probe", **QUICK)
conf = session.sparkContext.getConf()
memory = session.sparkContext._jvm.Runtime.getRuntime().maxMemory()
print("found", conf.get("spark.master"), memory >> 20)
session.stop()
"""


@pytest.mark.parametrize("job", JOBS)
def test_every_job_starts_by_its_file_from_any_folder(tmp_path: Path, job: str) -> None:
    """As spark-submit starts it: with the file's folder alone on the path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = ROOT / "spark" / "jobs" / f"{job}.py"
    done = run([sys.executable, str(path), "--help"], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    assert f"Example: python -m spark {job} " in done.stdout


def test_what_spark_submit_is_told_beats_the_kits_settings(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{SETTINGS}")
    submit = Path(sys.executable).parent / "spark-submit"
    settings = ["--master", "local[1]", "--driver-memory", "600m"]
    path = f"{submit.parent}:{os.environ['PATH']}"
    done = run([str(submit), *settings, "probe.py"], cwd=tmp_path, env=os.environ | {"PATH": path})
    assert done.returncode == 0, done.stderr[-2000:]
    [found] = [line for line in done.stdout.splitlines() if line.startswith("found")]
    _, master, mebibytes = found.split()
    assert master == "local[1]"
    assert 500 <= int(mebibytes) <= 600


def test_an_audit_that_is_interrupted_says_so_and_is_taken_up_again(tmp_path: Path) -> None:
    truth = write_run(tmp_path / "run", messages=2000, faults=Faults(lost=1))
    argv = [sys.executable, "-m", "spark", "audit", "--events", str(tmp_path / "run")]
    argv += ["--out", str(tmp_path / "out")]
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A terminal's Ctrl-C goes to the JVM too.
        start_new_session=True,
    ) as process:
        tables = tmp_path / "out" / "tables"
        eventually(lambda: (tables / "published").exists(), within_s=STARTED_WITHIN_S)
        os.killpg(process.pid, signal.SIGINT)
        said, complained = process.communicate(timeout=JOB_WITHIN_S)
    assert (process.returncode, said) == (130, "")
    # Behind the line of a terminal's ^C.
    assert complained == "\npython -m spark: interrupted\n"
    assert not (tmp_path / "out" / "audit.json").exists()
    again = run(argv, cwd=ROOT)
    assert again.returncode == 1, again.stderr
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert found["faults"] == ["1 confirmed and never delivered"]
    assert sum(row["deliveries"] for row in found["subscriptions"]) == truth.deliveries


def test_a_full_disk_is_one_line_and_leaves_no_answer(tmp_path: Path) -> None:
    write_run(tmp_path / "run", messages=2000)
    full = tmp_path / "full"
    full.mkdir()
    mount = f"mount -t tmpfs -o size={DISK_KB}k tmpfs {full} && exec "
    job = f"{sys.executable} -m spark audit --events {tmp_path / 'run'} --out {full / 'out'}"
    # A mount that only this process and its own see.
    done = run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount + job], ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "No space left on device" in done.stderr
    assert done.stderr.startswith("audit: ")


def run(
    argv: list[str], cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=JOB_WITHIN_S, check=False
    )
