"""Jobs with older PySparks: their file and the archive alone, as a driver of cluster deploy mode has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark.pack import pack
from tests.support.events import Faults, write_run
from tests.support.eventually import FACTOR

ROOT = Path(__file__).resolve().parents[2]
# The oldest one; the newest is that of all other tests. 4.0.1 passes too, for 350 MB more.
VERSIONS = ("3.5.7",)
INSTALL_WITHIN_S, JOBS_WITHIN_S = 900, 600 * FACTOR
pytestmark = pytest.mark.timeout(3600)
OF_LAKE = ("--lake", "lake", "--run", "run-1", "--max-bad", "1")
ARGUMENTS = {
    "ingest": ("--events", "run", "--lake", "lake", "--max-bad", "1"),
    "audit": OF_LAKE,
    "backlog": OF_LAKE,
    "compare": ("--lake", "lake", "run-1", "run-1"),
    "report": ("--events", "run", "--max-bad", "1"),
}
# Jobs in turn in one JVM, each with a session of its own.
IN_TURN = """
import json, runpy, sys
ended = {}
for argv in json.loads(sys.argv[1]):
    sys.argv = argv
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as left:
        ended[argv[0]] = left.code
with open("ended.json", "w") as file:
    json.dump(ended, file)
"""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(params=VERSIONS)
def packages(request: pytest.FixtureRequest) -> Path:
    """A folder with PySpark of this version; all else is in .venv."""
    version = str(request.param)
    folder = ROOT / ".cache" / "pyspark" / version
    if not (folder / "complete").exists():
        pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "install", "--upgrade"]
        argv = [*pip, "--target", str(folder), f"pyspark=={version}"]
        subprocess.run(argv, check=True, timeout=INSTALL_WITHIN_S)
        (folder / "complete").touch()
    return folder


def test_jobs_work_from_the_archive_alone_and_the_live_one_says_what_it_needs(
    tmp_path: Path, packages: Path
) -> None:
    truth = write_run(tmp_path / "run", messages=200, faults=Faults(owed=3, lost=1, cut_lines=1))
    pack(tmp_path / "messagebus.zip")
    for job in ARGUMENTS:
        shutil.copy(ROOT / "spark" / "jobs" / f"{job}.py", tmp_path)
    (tmp_path / "in_turn.py").write_text(IN_TURN)
    environ = os.environ | {
        "SPARK_HOME": str(packages / "pyspark"),
        "PYTHONPATH": str(packages),
        "PYSPARK_PYTHON": sys.executable,
    }
    argvs = [[f"{job}.py", *words, "--out", f"out/{job}"] for job, words in ARGUMENTS.items()]
    conf = [word for item in SETTINGS.items() for word in ("--conf", "=".join(item))]
    quick = ("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    argv = [
        *(str(packages / "pyspark" / "bin" / "spark-submit"), "--master", "local[1]"),
        *(*quick, *conf, "--py-files", "messagebus.zip", "in_turn.py", json.dumps(argvs)),
    ]
    done = run(argv, tmp_path, environ)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-3000:]}"
    ended = json.loads((tmp_path / "ended.json").read_text())
    # A message is lost: both say so, and the others count.
    codes = {"ingest": 0, "audit": 7, "backlog": 7, "compare": 0, "report": 7}
    assert ended == {f"{job}.py": code for job, code in codes.items()}, done.stdout[-3000:]
    audited = json.loads((tmp_path / "out" / "audit" / "audit.json").read_text())
    assert sum(row["deliveries"] for row in audited["subscriptions"]) == truth.deliveries
    assert audited["counts"]["lost"] == 1
    reported = json.loads((tmp_path / "out" / "report" / "audit.json").read_text())
    assert (reported["lost"], reported["doubled"]["owed"]) == (1, 3)
    assert "<svg" in (tmp_path / "out" / "report" / "report.html").read_text()
    live = [sys.executable, "-m", "spark", "live", "--topic", "orders", "--out", "out/live"]
    path = f"{packages}:{tmp_path / 'messagebus.zip'}"
    done = run(live, tmp_path, environ | {"PYTHONPATH": path})
    said = f"live: the live source needs PySpark 4.2 or later, and this is {packages.name}\n"
    assert (done.returncode, done.stderr) == (1, said)


def run(argv: list[str], cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=JOBS_WITHIN_S,
        check=False,
    )
