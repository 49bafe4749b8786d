"""Jobs as processes: their start, and their end when they cannot finish."""

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
from tests.support.progress import without_progress

ROOT = Path(__file__).resolve().parents[2]
JOBS = sorted(
    path.stem for path in (ROOT / "spark" / "jobs").glob("*.py") if path.stem != "__init__"
)
# A job is through in ten seconds on a quiet machine; ten times as long, and more, beside all other tests.
JOB_WITHIN_S = 600 * FACTOR
STARTED_WITHIN_S = 300
# For nine jobs one after the other.
pytestmark = pytest.mark.timeout(3600)
# Less than the tables of a small run, more than what Java keeps beside them.
DISK_KB = 40
# A name that Spark would take for a pattern.
RUN = "run [1] of 2"
OF_LAKE = ("--lake", "lake", "--run", "run-1")
# In an order in which each finds what it needs.
ARGUMENTS = {
    "ingest": ("--events", RUN, "--lake", "lake", "--max-bad", "1"),
    **dict.fromkeys(
        ("throughput", "latency", "audit", "imbalance", "backlog", "failover"),
        (*OF_LAKE, "--max-bad", "1"),
    ),
    "compare": ("--lake", "lake", "run-1", "run-1"),
    "report": ("--events", RUN, "--max-bad", "1"),
}
# By arithmetic over results of the bench.
WITHOUT_SPARK = ("capacity",)
# The commands of their own. All others are made by one function: by name, the audit below stands for
# them, and the report is in test_spark_recorder.py. Ten seconds each would be a minute.
BY_NAME = ("ingest", "compare")
# One after the other as `python -m spark` runs each; a JVM starts once.
BY_NAMES = """
import json, sys
from spark.__main__ import main
sys.exit(max(main(words) for words in json.loads(sys.argv[1])))
"""
HEAP_MIB = 600
# Variables that say where modules are, and how wide a text is printed.
OTHERS = ("PYTHONPATH", "COLUMNS")
SUBMIT = (
    *("spark-submit", "--master", "local[1]", "--driver-memory", f"{HEAP_MIB}m"),
    *(
        "--driver-java-options",
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+PrintCommandLineFlags",
    ),
    *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.sql.adaptive.enabled=false"),
    *("--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.rolling.enabled=false"),
    *("--conf", "spark.eventLog.compress=false"),
    # Half the time: to compile code takes longer than rows so few take without. By name jobs run compiled.
    *(
        "--conf",
        "spark.sql.codegen.wholeStage=false",
        "--conf",
        "spark.sql.codegen.factoryMode=NO_CODEGEN",
    ),
)


# Jobs in turn in one process, each by its file as if alone: with the file's folder on the path, and without
# the checkout's modules. A file gets their exit codes and what they printed: spark-submit puts both outputs
# of Python and the JVM's into one, in pieces.
IN_TURN = """
import contextlib, io, json, runpy, sys
ended, found = {}, sys.path[1:]
_, argvs, answer = sys.argv
for argv in json.loads(argvs):
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("spark", "messagebus"):
            del sys.modules[name]
    sys.argv, sys.path[:] = argv, [argv[0].rpartition("/")[0], *found]
    code = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as left:
            code = left.code
    ended[argv[0]] = code, printed.getvalue()
with open(answer, "w") as file:
    json.dump(ended, file)
"""


def test_every_job_starts_by_its_file_from_any_folder(tmp_path: Path) -> None:
    """spark-submit starts it so: with the file's folder alone on the path."""
    environ = {name: value for name, value in os.environ.items() if name not in OTHERS}
    argvs = json.dumps([[path_of(job), "--help"] for job in JOBS])
    done = run([sys.executable, "-c", IN_TURN, argvs, "ended.json"], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert {*ended} == {path_of(job) for job in JOBS}
    for job in JOBS:
        code, printed = ended[path_of(job)]
        assert code == 0, printed
        assert f"Example: python -m spark {job} " in printed


def test_every_job_works_under_spark_submit_from_any_folder_with_what_it_is_told(
    tmp_path: Path,
) -> None:
    """The report is submitted by its file, as documented; all others share a JVM, with a session each."""
    faults = Faults(owed=3, cut_lines=1)
    truth = write_run(tmp_path / RUN, messages=200, faults=faults)
    (tmp_path / "log").mkdir()
    (tmp_path / "in_turn.py").write_text(IN_TURN)
    folder = Path(sys.executable).parent
    environ = {name: value for name, value in os.environ.items() if name not in OTHERS}
    environ["PATH"] = f"{folder}:{environ['PATH']}"
    log = ("--conf", f"spark.eventLog.dir=file://{tmp_path}/log")
    argvs = {
        job: [path_of(job), *arguments, "--out", f"out/{job}"]
        for job, arguments in ARGUMENTS.items()
    }
    report = argvs.pop("report")
    for submitted in (["in_turn.py", json.dumps([*argvs.values()]), "ended.json"], report):
        argv = [str(folder / SUBMIT[0]), *SUBMIT[1:], *log, *submitted]
        done = run(argv, cwd=tmp_path, env=environ)
        assert done.returncode == 0, f"{done.stdout[-1000:]}{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr
        assert f"-XX:MaxHeapSize={HEAP_MIB << 20} " in done.stdout
        if submitted is report:
            first, *_ = (tmp_path / "out" / "report" / "report.txt").read_text().splitlines()
            assert first in done.stdout
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert {*ended} == {path_of(job) for job in argvs}
    for job in argvs:
        code, printed = ended[path_of(job)]
        assert code == 0, printed
        assert printed.startswith((tmp_path / "out" / job / f"{job}.txt").read_text().rstrip())
    assert [cores_of(path) for path in (tmp_path / "log").iterdir()] == [1] * len(ARGUMENTS)
    assert {*ARGUMENTS} == {*JOBS} - {*WITHOUT_SPARK}
    audited = json.loads((tmp_path / "out" / "audit" / "audit.json").read_text())
    assert sum(row["deliveries"] for row in audited["subscriptions"]) == truth.deliveries
    reported = json.loads((tmp_path / "out" / "report" / "audit.json").read_text())
    assert reported["doubled"]["owed"] == faults.owed
    assert (reported["lines"]["read"], reported["lines"]["bad"]) == (truth.lines, 1)


def test_the_exit_code_of_a_job_is_that_of_spark_submit(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    argv = [
        str(folder / "spark-submit"),
        path_of("audit"),
        "--lake",
        "l",
        "--run",
        "r",
        "--out",
        "o",
    ]
    done = run(argv, tmp_path, os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"})
    # spark-submit puts both outputs of a job into one.
    assert done.returncode == 2
    assert done.stdout == "audit: l: no run 'r' was ingested; there are: none\n"


def path_of(job: str) -> str:
    return str(ROOT / "spark" / "jobs" / f"{job}.py")


def cores_of(log: Path) -> int:
    """Return how many cores a session had, by its own record."""
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerExecutorAdded":
            return int(event["Executor Info"]["Total Cores"])
    raise AssertionError(f"{log}: no executor")


def test_jobs_work_by_their_names_from_any_folder(tmp_path: Path) -> None:
    write_run(tmp_path / RUN, messages=200, faults=Faults(owed=3, cut_lines=1))
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    jobs = json.dumps([[job, *ARGUMENTS[job], "--out", f"out/{job}"] for job in BY_NAME])
    done = run([sys.executable, "-c", BY_NAMES, jobs], cwd=tmp_path, env=environ)
    assert done.returncode == 0, f"{done.stdout[-1000:]}{done.stderr[-2000:]}"
    for job in BY_NAME:
        assert json.loads((tmp_path / "out" / job / f"{job}.json").read_text())


def test_an_audit_that_is_interrupted_says_so_and_is_taken_up_again(tmp_path: Path) -> None:
    truth = write_run(tmp_path / "run", messages=2000, faults=Faults(lost=1))
    argv = [sys.executable, "-m", "spark", "audit", "--events", "run", "--out", "out"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=environ,
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
    assert without_progress(complained) == "\nspark: interrupted\n"
    assert not (tmp_path / "out" / "audit.json").exists()
    again = run(argv, cwd=tmp_path, env=environ)
    assert again.returncode == 7, again.stderr
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
    (told,) = without_progress(done.stderr).splitlines()
    assert "No space left on device" in told
    assert told.startswith("audit: ")


def run(
    argv: list[str], cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=JOB_WITHIN_S, check=False
    )
