"""Runs the whole suite, in parts beside each other: most of its time is waiting for brokers.

Each part is a pytest of its own, with clusters of its own. What fails is run once more, by itself, when
all are done: brokers that are killed on a shared machine are not always in time. All runs are told.

    python tests/run.py
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
CHECKOUT = TESTS.parent
# About equally long. Virtual hosts wait for themselves, most of the time, and for their image where there
# is none yet: they have the longest files of other folders beside them.
PARTS = {
    "first": ("contract", "integration"),
    "hosts": (
        "hosts",
        "integration/test_docs_operations.py",
        "integration/test_playbooks_interrupted.py",
        "integration/test_spark_jobs.py",
        "integration/test_worker.py",
    ),
    "rest": ("integration/test_playbooks.py",),  # and all that no other part has
}
SOME_FAILED = 1  # pytest's exit code


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    paths: tuple[str, ...]
    scratch: Path

    def start(self, *options: str, to_file: bool) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C reaches it once, through us."""
        cache = f"cache_dir={CHECKOUT}/.pytest_cache/{self.name}"
        argv = [sys.executable, "-m", "pytest", *options, *self.paths, "-o", cache]
        argv.append(f"--junitxml={self._report}")
        self._report.unlink(missing_ok=True)
        out = self.output.open("wb") if to_file else None
        return subprocess.Popen(argv, cwd=CHECKOUT, stdout=out, start_new_session=True)

    @property
    def output(self) -> Path:
        return self.scratch / f"{self.name}.txt"

    @property
    def _report(self) -> Path:
        return self.scratch / f"{self.name}.xml"

    def counts(self) -> tuple[int, int]:
        """Passed and failed, of its last run; none where it was ended."""
        if not self._report.is_file():
            return 0, 0
        suite = ElementTree.parse(self._report).getroot()[0]
        run, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
        failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        return run - skipped - failed, failed


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="messagebus-tests-") as scratch:
        parts = [Part(name, paths, Path(scratch)) for name, paths in _paths().items()]
        running = [part.start(to_file=number > 0) for number, part in enumerate(parts)]
        codes = _wait(running)
        for part in parts[1:]:
            sys.stdout.write(part.output.read_text(errors="replace"))
        counts = [part.counts() for part in parts]
        for number, part in enumerate(parts):
            if codes[number] == SOME_FAILED:
                print(f"what failed of the part {part.name}, once more:", flush=True)
                only_failed = ("--last-failed", "--last-failed-no-failures=none")
                codes[number : number + 1] = _wait([part.start(*only_failed, to_file=False)])
                mended, _ = part.counts()
                passed, failed = counts[number]
                counts[number] = (passed + mended, failed - mended)
    print(
        f"{sum(passed for passed, _ in counts)} passed, {sum(failed for _, failed in counts)} failed"
    )
    return max(map(abs, codes))  # ended by a signal: its number, below zero


def _wait(running: list[subprocess.Popen[bytes]]) -> list[int]:
    """Exit codes. Told to end, they stop what they started first."""

    def end(_number: int, _frame: object) -> None:
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    return [process.wait() for process in running]


def _paths() -> dict[str, tuple[str, ...]]:
    """What pytest is given, by part: a file goes to the part that names it, or else its folder."""
    there = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    named = {name for names in PARTS.values() for name in names}
    files = {name for name in named if name.endswith(".py")}
    parts = PARTS | {"rest": (*sorted(there - named), *PARTS["rest"])}
    return {
        part: (
            *(f"tests/{name}" for name in names),
            *(f"--ignore=tests/{name}" for name in sorted(files.difference(names))),
        )
        for part, names in parts.items()
    }


if __name__ == "__main__":
    sys.exit(main())
