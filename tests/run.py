"""Runner of the tiers of the suite, in parts beside each other.

    python -m tests.run          what `make test` runs: a test that fails, fails it
    python -m tests.run --all    the same, then everything else: style, types, other releases; what takes long
                                 by turns, with --every all of it

The parts are in `tests.tiers`. Each is a pytest of its own, with clusters of its own. The one that waits for
brokers runs beside all others, which take little or have no server. With --all those of the second tier begin
as soon as those of the first have ended, and properties are tried with all their examples.

With --all a failed test is run once more, by itself, when all are done: on a shared machine a broker that is
killed is not always in time. Such a test is named with its first failure, and more than LATE_MAX of them fail
the run. The end says where the time went. It names the files that take a third more than in
tests/durations.json, which --all writes anew when nothing has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import pytest

from messagebus.errors import MessageBusError
from tests import tiers, versions
from tests.support import eventually, starts
from tests.support.examples import THOROUGH

CHECKOUT = Path(__file__).resolve().parents[1]
# The part that waits for brokers. The others run beside it, two at a time.
WAITS, BESIDE = "real", 2
# Several files of a part run at once, the longest first (tests/conftest.py): most of their time is waiting.
FILES_AT_ONCE = {WAITS: 3, "unit": 3}
CHECKS = ("make", "--no-print-directory", "lint", "types")
SOME_FAILED, NO_TESTS = 1, 5  # pytest's exit codes
LATE_MAX = 2  # of 14,000 tests: how many may pass at their second try only
SLOWEST_SHOWN = 20
GROWN, GROWN_BY_S = 4 / 3, 5.0
KEPT_S = 0.5  # tests that take less are not in tests/durations.json

Command = Callable[[Sequence[str]], tuple[list[str], dict[str, str]]]


def _here(pytest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, *pytest], dict(os.environ)


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a tier. command: makes the argv and the environment of a pytest; may take a minute."""

    name: str
    options: tuple[str, ...]
    scratch: Path
    command: Command = _here
    environ: Mapping[str, str] = field(default_factory=dict)

    def start(self, *options: str, to_file: bool) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, so that Ctrl-C reaches it once, through us."""
        cache = f"cache_dir={CHECKOUT}/.pytest_cache/{self.name}"
        argv, environ = self.command(
            ["-m", "pytest", *self.options, *options, "-o", cache, f"--junitxml={self._report}"]
        )
        self._report.unlink(missing_ok=True)
        out = self.output.open("wb") if to_file else None
        return subprocess.Popen(
            argv,
            cwd=CHECKOUT,
            env=environ | dict(self.environ),
            stdout=out,
            stderr=out,
            start_new_session=True,
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

    def failed(self) -> dict[str, str]:
        """Return the tests that failed in its last run, each with the first line of its failure."""
        found = {}
        for case in self._cases():
            fault = case.find("failure")
            fault = case.find("error") if fault is None else fault
            if fault is not None:
                found[_name_of(case)] = fault.attrib.get("message", "").partition("\n")[0]
        return found

    def durations(self) -> dict[str, float]:
        """Return the seconds of each test of its last run, with its fixtures."""
        return {_name_of(case): float(case.attrib["time"]) for case in self._cases()}

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
    """Processes of parts. Asked to end, they stop what they started first, and none is started."""

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

    def one_by_one(self, parts: Iterable[Part], codes: dict[str, int]) -> None:
        """Run parts in turn. A release that cannot be had is a failure in CI, and reported elsewhere."""
        for part in parts:
            if self.ending:
                return
            try:
                codes[part.name] = self.wait(part.start(to_file=True))[0]
            except (MessageBusError, OSError, subprocess.SubprocessError) as fault:
                part.output.write_text(f"NOT RUN: {part.name}: {fault}\n")
                codes[part.name] = 2 if os.environ.get("CI") == "true" else 0

    def style(self, out: Path) -> int:
        """Run the checks of style and types; return their exit code."""
        with out.open("wb") as file:
            return self.wait(
                subprocess.Popen(
                    CHECKS, cwd=CHECKOUT, stdout=file, stderr=file, start_new_session=True
                )
            )[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    parser.add_argument("--all", action="store_true", help="everything, not only the first tier")
    parser.add_argument("--every", action="store_true", help="leave out no test that runs by turns")
    asked = parser.parse_args()
    is_all = asked.all
    if asked.every:
        os.environ[tiers.EVERY] = "1"
    running, began_s, load = Running(), time.monotonic(), os.getloadavg()[0]
    signal.signal(signal.SIGINT, running.end)
    signal.signal(signal.SIGTERM, running.end)
    cache = CHECKOUT / ".cache"
    cache.mkdir(exist_ok=True)
    busy_s = _busy_s()
    # Inside of the checkout: what runs in a root folder sees nothing else.
    with tempfile.TemporaryDirectory(prefix="tests-", dir=cache) as folder:
        scratch = Path(folder)
        os.environ[starts.FILE] = str(scratch / "starts.txt")
        # Parts beside each other on two processors: no time limit of a test is about that.
        os.environ.setdefault(eventually.ENV_FACTOR, "2")
        codes = dict[str, int]()
        _compile(running)
        parts = _parts(scratch, is_all=is_all)
        _run(parts, running, codes, scratch, style=is_all)
        counts = {part.name: part.counts() for part in parts}
        took = ", ".join(f"{part.name} {part.took_s():.0f} s" for part in parts)
        seconds = {part.name: part.durations() for part in parts}
        late: dict[str, str] = {}
        for part in parts if is_all else ():
            if codes.get(part.name) == SOME_FAILED and not running.ending:
                late |= _once_more(part, running, codes, counts)
        waited = starts.summed(scratch / "starts.txt")
        left = {
            name: said
            for part in parts
            if codes.get(part.name)
            for name, said in part.failed().items()
        }
    codes = {
        name: 0 if code == NO_TESTS and counts.get(name) else code for name, code in codes.items()
    }
    passed, failed = (sum(column) for column in zip(*counts.values(), strict=True))
    before = tiers.read_durations()
    today = {
        name: took
        for name, took in _summed(seconds.values()).items()
        if not tiers.BY_TURNS.search(name)
    }
    tests = _others(today, before["tests"]) | today if is_all else today
    grown = _grown(_by_file(tests), before["files"])
    print("\n".join([*_slowest(today), f"parts: {took}", waited]))
    print(_cost(began_s, busy_s, load))
    print(
        "\n".join(f"takes a third more than before: {line}" for line in grown),
        end="\n" if grown else "",
    )
    print("\n".join(f"ended with {code}: {name}" for name, code in codes.items() if code))
    print("\n".join(f"failed: {name}: {said}" for name, said in left.items()))
    print("\n".join(_lines_of(late)))
    print(f"{passed} passed, {failed} failed")
    code = _verdict(codes.values(), late)
    if is_all and code == 0:
        _keep(tests)
    return code


def _compile(running: Running) -> None:
    """Have pytest compile its files where that is not done: else each of a dozen workers does it."""
    if not (files := [file for file in sorted(tiers.TESTS.rglob("test_*.py")) if _is_new(file)]):
        return
    print(f"compiling {len(files)} files of tests", flush=True)
    shares = [files[number :: os.cpu_count() or 1] for number in range(os.cpu_count() or 1)]
    collect = (sys.executable, "-m", "pytest", "--collect-only", "-q")
    running.wait(
        *(
            subprocess.Popen(
                [*collect, *map(str, share)],
                cwd=CHECKOUT,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            for share in shares
            if share
        )
    )


def _is_new(file: Path) -> bool:
    """Return whether pytest has not compiled the file as it is."""
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    compiled = file.parent / "__pycache__" / f"{file.stem}.{tag}.pyc"
    return not compiled.exists() or compiled.stat().st_mtime < file.stat().st_mtime


def _parts(scratch: Path, *, is_all: bool) -> list[Part]:
    """Return the parts of the first tier or of both, those that wait for brokers first."""
    wanted = [("test", WAITS), ("test", "unit"), ("test", "spark")]
    if is_all:
        # Spark's of both tiers are one part: Java starts once less.
        wanted = [
            ("test", WAITS),
            ("rest", WAITS),
            ("test", "unit"),
            ("rest", "hosts"),
            ("both", "spark"),
        ]
    parts = []
    for tier, name in wanted:
        at_once = FILES_AT_ONCE.get(name)
        in_order = ("--dist", "loadfile", "--no-loadscope-reorder")
        several = ("-n", str(at_once), *in_order) if at_once else ()
        options = (f"--part={name}", *several, *tiers.paths_of(name))
        environ = {THOROUGH: "1"} if is_all else {}
        parts.append(Part(f"{tier}-{name}", (f"--tier={tier}", *options), scratch, environ=environ))
    for share in versions.shares() if is_all else ():
        print(f"{share.name}: {' '.join(share.paths)}", flush=True)
        parts.append(Part(share.name, share.paths, scratch, share.command))
    return parts


def _run(
    parts: Sequence[Part],
    running: Running,
    codes: dict[str, int],
    scratch: Path,
    *,
    style: bool = False,
) -> None:
    """Run those that wait for brokers, in turn, beside the others, BESIDE at a time.

    Print what each has printed.
    """
    said = scratch / "style.txt"
    waits = [part for part in parts if part.name.endswith(f"-{WAITS}")]
    others = [part for part in parts if part not in waits]
    waiting = SimpleQueue[Part | None]()
    for part in (*others, *[None] * BESIDE):
        waiting.put(part)

    def in_turn(checks: bool) -> None:
        running.one_by_one(iter(waiting.get, None), codes)
        if checks and not running.ending:
            codes["style and types"] = running.style(said)

    chains = [threading.Thread(target=in_turn, args=(style and not n,)) for n in range(BESIDE)]
    for chain in chains:
        chain.start()
    for part in waits:
        if not running.ending:
            codes[part.name] = running.wait(part.start(to_file=False))[0]
    for chain in chains:
        chain.join()
    for file in (*(part.output for part in others), said):
        if file.exists():
            sys.stdout.write(f"\n{file.stem}:\n{file.read_text(errors='replace')}")
    sys.stdout.flush()


def _once_more(
    part: Part, running: Running, codes: dict[str, int], counts: dict[str, tuple[int, int]]
) -> dict[str, str]:
    """Run the failed tests of a part again; return those that pass now, each with its first failure."""
    print(f"what failed of the part {part.name}, once more:", flush=True)
    before = part.failed()
    only_failed = ("--last-failed", "--last-failed-no-failures=none")
    codes[part.name] = running.wait(part.start(*only_failed, to_file=False))[0]
    mended, _ = part.counts()
    passed, failed = counts[part.name]
    counts[part.name] = (passed + mended, failed - mended)
    again = part.failed()
    return {name: said for name, said in before.items() if name not in again}


def _lines_of(late: Mapping[str, str]) -> list[str]:
    if not late:
        return []
    too_many = f", more than {LATE_MAX}" if len(late) > LATE_MAX else ""
    head = f"{len(late)} at the second try only{too_many}:"
    return [head, *(f"  {name}: {said}" for name, said in sorted(late.items()))]


def _verdict(codes: Iterable[int], late: Mapping[str, str]) -> int:
    """Return the exit code of the run. codes: of pytest; of one ended by a signal its number, below zero."""
    worst = max(map(abs, codes))
    return SOME_FAILED if not worst and len(late) > LATE_MAX else worst


def _busy_s() -> float:
    """Return the seconds that the processors of this machine have worked since its start."""
    user, nice, system, _idle, _wait, *rest = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8]
    )
    return float(user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _cost(began_s: float, busy_s: float, load: float) -> str:
    """Say what the run took: time, its own processes, and all others, which are brokers mostly."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_s = used.ru_utime + used.ru_stime
    all_s = _busy_s() - busy_s
    wall_s = time.monotonic() - began_s
    return (
        f"wall {wall_s // 60:.0f} min {wall_s % 60:.0f} s, CPU {own_s:.0f} s of the tests' own processes and "
        f"{max(0.0, all_s - own_s):.0f} s of all others (brokers, agents), on {os.cpu_count()} processors; "
        f"load {load:.1f} when it began"
    )


def _name_of(case: ElementTree.Element) -> str:
    """Return pytest's name of a test from JUnit's: tests.unit.test_docs, test_links."""
    *folders, name = case.attrib["classname"].split(".")
    return f"{'/'.join([*folders, f'{name}.py'])}::{case.attrib['name']}"


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return seconds by test, over all parts: other releases and thorough properties count, too."""
    found: dict[str, float] = defaultdict(float)
    for tests in parts:
        for name, seconds in tests.items():
            found[name] = max(found[name], seconds)
    return found


def _others(today: Collection[str], before: Mapping[str, float]) -> dict[str, float]:
    """Return the tests that had no turn today with their seconds before, where they still are."""
    found = dict[str, float]()
    for name, seconds in before.items():
        file, _, test = name.partition("::")
        path = CHECKOUT / file
        if name not in today and path.is_file():
            is_there = f"def {test.partition('[')[0].rpartition('::')[2]}(" in path.read_text()
            found |= {name: seconds} if is_there and tiers.is_by_turns(name, before) else {}
    return found


def _by_file(tests: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, seconds in tests.items():
        found[name.partition("::")[0]] += seconds
    return found


def _grown(files: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Name the files that take a third more than before; the median file says how quick the machine is."""
    both = [name for name in files if before.get(name)]
    if not both:
        return []
    machine = statistics.median(files[name] / before[name] for name in both)
    return [
        f"{name}, {files[name]:.0f} s for {before[name] * machine:.0f} s"
        for name in sorted(both)
        if files[name] > before[name] * machine * GROWN
        and files[name] - before[name] * machine > GROWN_BY_S
    ]


def _keep(tests: Mapping[str, float]) -> None:
    """Write tests/durations.json: all files, and the tests that take long enough to be chosen by it."""
    files = {name: round(seconds, 1) for name, seconds in sorted(_by_file(tests).items())}
    long = {name: round(seconds, 1) for name, seconds in sorted(tests.items()) if seconds >= KEPT_S}
    tiers.DURATIONS.write_text(json.dumps({"files": files, "tests": long}, indent=0) + "\n")


def _slowest(tests: Mapping[str, float]) -> list[str]:
    """Return lines with the files and the tests that took longest."""
    lines = []
    for title, seconds in (("files", _by_file(tests)), ("tests", tests)):
        longest = sorted(seconds.items(), key=lambda each: -each[1])[:SLOWEST_SHOWN]
        lines += [f"the slowest {title}:", *(f"{took:7.1f} s  {name}" for name, took in longest)]
    return lines


if __name__ == "__main__":
    sys.exit(main())
