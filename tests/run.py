"""Runner of the whole suite, in parts beside each other.

Each part is a pytest of its own, with clusters of its own. Beside them, one after the other, go style and
types, the unit tests, Spark's jobs, and the runs on other versions (`tests.versions`). A failed test is run
once more, by itself, when all are done: brokers that are killed on a shared machine are not always in time.
More than some that pass at their second try only fail the run. The end names all runs, those tests, and where
the time went.

    python -m tests.run
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from messagebus.errors import MessageBusError
from tests import versions
from tests.support import beside, eventually, starts
from tests.support.examples import THOROUGH

TESTS = Path(__file__).resolve().parent
CHECKOUT = TESTS.parent
PARTS = {
    # All that no other part has.
    "real": (),
    "unit": ("model", "unit"),
    "spark": ("integration/test_spark_hdfs.py", "integration/test_spark_jobs.py"),
}
# Parts that wait for little: they run one after the other beside those that wait for brokers.
IN_TURN = ("unit", "spark")
# Several files of a part run at once, the longest first (tests/conftest.py); the last when no other part
# runs any more. With it beside the others two processors are so busy that tests fail by their time limits.
FILES_AT_ONCE = {"real": beside.FIRST_LATE + 1}
CHECKS = ("make", "--no-print-directory", "lint", "types")
SOME_FAILED = 1  # pytest's exit code
LATE_MAX = 2  # tests that may pass at their second try only
SLOWEST_SHOWN = 20

Command = Callable[[Sequence[str]], tuple[list[str], dict[str, str]]]


def _here(pytest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, *pytest], dict(os.environ)


@dataclass(frozen=True, slots=True)
class Part:
    """Part of the suite. command: makes the argv and the environment of a pytest; may take a minute."""

    name: str
    paths: tuple[str, ...]
    scratch: Path
    command: Command = _here

    def start(self, *options: str, to_file: bool) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, so that Ctrl-C reaches it once, through us."""
        cache = f"cache_dir={CHECKOUT}/.pytest_cache/{self.name}"
        if several := FILES_AT_ONCE.get(self.name):
            options += ("-n", str(several), "--dist", "loadfile", "--no-loadscope-reorder")
        pytest = ["-m", "pytest", *options, *self.paths, "-o", cache]
        argv, environ = self.command([*pytest, f"--junitxml={self._report}"])
        self._report.unlink(missing_ok=True)
        out = self.output.open("wb") if to_file else None
        return subprocess.Popen(
            argv, cwd=CHECKOUT, env=environ, stdout=out, stderr=out, start_new_session=True
        )

    @property
    def output(self) -> Path:
        return self.scratch / f"{self.name}.txt"

    @property
    def _report(self) -> Path:
        return self.scratch / f"{self.name}.xml"

    def counts(self) -> tuple[int, int]:
        """Return how many passed and failed in its last run; none where it was ended."""
        if (suite := self._suite()) is None:
            return 0, 0
        run, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
        failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        return run - skipped - failed, failed

    def took_s(self) -> float:
        """Return the duration of its last run."""
        suite = self._suite()
        return 0.0 if suite is None else float(suite.attrib["time"])

    def failed(self) -> set[str]:
        """Return the names of the tests that failed in its last run."""
        return {
            _name_of(case)
            for case in self._cases()
            if case.find("failure") is not None or case.find("error") is not None
        }

    def durations(self) -> list[tuple[float, str, str]]:
        """Return seconds, file and name of each test of its last run, with its fixtures."""
        return [
            (float(case.attrib["time"]), _file_of(case), f"{self.name}: {_name_of(case)}")
            for case in self._cases()
        ]

    def _cases(self) -> Iterable[ElementTree.Element]:
        """Return the test cases that ended; one that was cut off has no name."""
        suite = self._suite()
        return [] if suite is None else suite.iterfind("testcase[@name]")

    def _suite(self) -> ElementTree.Element | None:
        if not self._report.is_file():
            return None
        return ElementTree.parse(self._report).getroot()[0]


@dataclass(slots=True)
class Running:
    """Processes of parts. When told to end, they stop what they started first, and none is started."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ending: bool = False

    def wait(self, *started: subprocess.Popen[bytes]) -> list[int]:
        """Wait for the exit codes."""
        self.processes += started
        if self.ending:
            self.end()
        return [process.wait() for process in started]

    def end(self, *_signal: object) -> None:
        self.ending = True
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)  # workers of pytest-xdist, too

    def one_by_one(self, parts: list[Part], codes: dict[str, int]) -> None:
        """Run parts in turn. A release that cannot be had is a failure in CI, and reported elsewhere."""
        for part in parts:
            if self.ending:
                return
            try:
                codes[part.name] = self.wait(part.start(to_file=True))[0]
            except (MessageBusError, OSError, subprocess.SubprocessError) as fault:
                part.output.write_text(f"NOT RUN: {part.name}: {fault}\n")
                codes[part.name] = 2 if os.environ.get("CI") == "true" else 0


def main() -> int:
    running, codes = Running(), dict[str, int]()
    signal.signal(signal.SIGINT, running.end)
    signal.signal(signal.SIGTERM, running.end)
    cache = CHECKOUT / ".cache"
    cache.mkdir(exist_ok=True)
    # Inside of the checkout: what runs in a root folder sees nothing else.
    with tempfile.TemporaryDirectory(prefix="tests-", dir=cache) as folder:
        scratch = Path(folder)
        starts_file = scratch / "starts.txt"
        busy = scratch / "busy"
        busy.touch()
        os.environ |= {
            THOROUGH: "1",
            starts.FILE: str(starts_file),
            beside.BUSY_FILE: str(busy),
        }
        # Everything beside each other on two processors: no time limit of a test is about that.
        os.environ.setdefault(eventually.ENV_FACTOR, "2")
        known = {name: Part(name, paths, scratch) for name, paths in _paths().items()}
        others = [Part(s.name, s.paths, scratch, s.command) for s in versions.shares()]
        parts = [part for name, part in known.items() if name not in IN_TURN]
        after = [*(known[name] for name in IN_TURN), *others]
        for part in others:
            print(f"{part.name}: {' '.join(part.paths)}", flush=True)
        said_of_style = scratch / "style.txt"

        def one_by_one() -> None:
            try:
                with said_of_style.open("wb") as out:
                    style = subprocess.Popen(
                        CHECKS, cwd=CHECKOUT, stdout=out, stderr=out, start_new_session=True
                    )
                codes["style and types"] = running.wait(style)[0]
                running.one_by_one(after, codes)
            finally:
                busy.unlink()

        chain = threading.Thread(target=one_by_one)
        chain.start()
        started = [part.start(to_file=number > 0) for number, part in enumerate(parts)]
        names = [part.name for part in parts]
        codes |= zip(names, running.wait(*started), strict=True)
        chain.join()
        parts += after
        for part in parts[1:]:
            if part.output.exists():
                sys.stdout.write(f"\n{part.name}:\n{part.output.read_text(errors='replace')}")
        sys.stdout.write(said_of_style.read_text(errors="replace"))
        counts = {part.name: part.counts() for part in parts}
        took = ", ".join(f"{part.name} {part.took_s():.0f} s" for part in parts)
        slowest = _slowest([each for part in parts for each in part.durations()])
        late: list[str] = []
        for part in parts:
            if codes.get(part.name) == SOME_FAILED and not running.ending:
                print(f"what failed of the part {part.name}, once more:", flush=True)
                failed_first = part.failed()
                only_failed = ("--last-failed", "--last-failed-no-failures=none")
                codes[part.name] = running.wait(part.start(*only_failed, to_file=False))[0]
                mended, _ = part.counts()
                late += sorted(failed_first - part.failed())
                passed, failed = counts[part.name]
                counts[part.name] = (passed + mended, failed - mended)
        waited = starts.summed(starts_file)
        left = sorted(name for part in parts if codes.get(part.name) for name in part.failed())
    passed, failed = (sum(column) for column in zip(*counts.values(), strict=True))
    print("\n".join([*slowest, f"parts: {took}", waited, *(f"failed: {name}" for name in left)]))
    print("\n".join(f"ended with {code}: {name}" for name, code in codes.items() if code))
    print(", ".join([f"{passed} passed, {failed} failed", *_words_of(late)]))
    return _verdict(codes.values(), late)


def _words_of(late: Sequence[str]) -> list[str]:
    if not late:
        return []
    too_many = f", more than {LATE_MAX}" if len(late) > LATE_MAX else ""
    return [f"{len(late)} at the second try only{too_many}: {' '.join(late)}"]


def _verdict(codes: Iterable[int], late: Sequence[str]) -> int:
    """Return the exit code of the run. codes: of pytest; of one ended by a signal its number, below zero."""
    worst = max(map(abs, codes))
    return SOME_FAILED if not worst and len(late) > LATE_MAX else worst


def _file_of(case: ElementTree.Element) -> str:
    """Return the file of a class or module in JUnit's format: tests.unit.test_docs."""
    *folders, name = case.attrib["classname"].split(".")
    return "/".join([*folders, f"{name}.py"])


def _name_of(case: ElementTree.Element) -> str:
    return f"{_file_of(case)}::{case.attrib['name']}"


def _slowest(durations: Sequence[tuple[float, str, str]]) -> list[str]:
    """Return lines with the files and the tests that took longest."""
    files: dict[str, float] = defaultdict(float)
    for seconds, file, _ in durations:
        files[file] += seconds
    by_file = sorted(((seconds, file) for file, seconds in files.items()), reverse=True)
    by_test = sorted(((seconds, name) for seconds, _, name in durations), reverse=True)
    return [
        "the slowest files:",
        *(f"{seconds:7.1f} s  {file}" for seconds, file in by_file[:SLOWEST_SHOWN]),
        "the slowest tests:",
        *(f"{seconds:7.1f} s  {name}" for seconds, name in by_test[:SLOWEST_SHOWN]),
    ]


def _paths() -> dict[str, tuple[str, ...]]:
    """Return pytest's paths by part: a file goes to the part that names it, or else with its folder."""
    there = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    named = {name for names in PARTS.values() for name in names}
    files = {name for name in named if name.endswith(".py")}
    parts = PARTS | {"real": tuple(sorted(there - named))}
    return {
        part: (
            *(f"tests/{name}" for name in names),
            *(f"--ignore=tests/{name}" for name in sorted(files.difference(names))),
        )
        for part, names in parts.items()
    }


if __name__ == "__main__":
    sys.exit(main())
