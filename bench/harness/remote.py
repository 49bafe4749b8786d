"""One load process on another host: started over SSH, its files exchanged, the two clocks compared.

``bench relay`` runs here in the place of the load process, so the coordinator starts, signals and watches it
as any other. ``bench remote`` runs there, in a checkout with the same code at the same path. It has a folder
of its own, which it removes at its end, or the next one there if it was killed; the load process finds and
leaves the same files in it as here.
"""

# Each line of the connection is JSON; lines of the load process itself go to the standard error.
#
#   relay                                            remote
#     {kind, number, env, files}   ──▶
#                                  ◀──   {code, commit, host}       BenchError for other code
#     {ping}, PINGS times          ──▶
#                                  ◀──   {monotonic_ns, wall_ns}    the quickest answer is `Clock`
#     {name, text}                 ──▶                              profile, start, rate, end of the run
#                                  ◀──   {name, base64}             who is ready, progress, parts
#     {end}, after SIGTERM         ──▶                              SIGTERM for the load process
#                                  ◀──   {code}                     it has ended; all of its files were sent
#
# Either end of the connection ends both sides, and the load process.

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import click

from bench.environment import CHECKOUT, code, commit
from bench.errors import BenchError
from bench.harness.parts import CONSUMER, PARTS, PUBLISHER
from bench.harness.workers import OVER, PROFILE, PROGRESS, RATE, READY, START, Start
from inventory.shell import ssh_command
from messagebus.files import replace_file

CLOCKS = "clocks"
# Compared before and after the run: the quickest of these answers.
PINGS = 20
POLL_S = 0.05
ANSWERS_WITHIN_S = 60.0
# For the other end, after the connection has ended, and for its last words.
END_WITHIN_S = 5.0
# A folder's name goes on with the process of its owner.
FOLDERS = "mb-load-"
# Of a file that an environment variable names: passwords and certificates.
FILE_BYTES_MAX = 1 << 20
LINE_BYTES_SHOWN = 80
MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks of another host, compared with those here. host: as SSH calls it.

    ahead_ns, wall_ahead_ns: its monotonic and its wall-clock time minus ours. error_ns: bound of the error of
    both, half of the quickest answer's time. drift_ns: change of ahead_ns during the run, by which a time
    at its end may be wrong, too.
    """

    host: str
    ahead_ns: int
    wall_ahead_ns: int
    error_ns: int
    drift_ns: int = 0

    def there(self, start: Start, host: str) -> Start:
        """Return a start for processes of that host: their monotonic clock gives times of ours."""
        offset_ns = start.wall_minus_monotonic_ns - self.ahead_ns
        return replace(start, host=host, wall_minus_monotonic_ns=offset_ns)


def about_hosts(folder: Path) -> dict[str, list[str]]:
    """Return what the results say of other hosts: nothing without any.

    load_hosts: a line for each host, with its load processes and how its clocks differ from ours.
    """
    by_host = defaultdict[str, list[tuple[str, Clock]]](list)
    for path in sorted((folder / CLOCKS).glob("[!.]*.json")):
        clock = Clock(**json.loads(path.read_text()))
        by_host[clock.host].append((path.stem, clock))
    lines = [_described(host, found) for host, found in by_host.items()]
    return {"load_hosts": lines} if lines else {}


def _described(host: str, found: Sequence[tuple[str, Clock]]) -> str:
    best = min((clock for _, clock in found), key=lambda clock: clock.error_ns)
    drift_ns = max((clock.drift_ns for _, clock in found), key=abs)
    error_ns = max(clock.error_ns + abs(clock.drift_ns) for _, clock in found)
    return (
        f"{host}: {', '.join(name for name, _ in found)}; its clock {best.wall_ahead_ns / MS:+.3f} ms, its "
        f"times corrected within {error_ns / MS:.3f} ms, changed by {drift_ns / MS:+.3f} ms during the run"
    )


class Relay:
    """The end here of one load process on another host. channel: the command that leads there."""

    def __init__(self, host: str, folder: Path, channel: Sequence[str]) -> None:
        self._host, self._folder = host, folder
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            channel, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._complaint = ""
        self._readers = [
            threading.Thread(target=read, daemon=True)
            for read in (self._read, self._read_complaints)
        ]
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._sent: dict[str, str] = {}
        self._told_to_end = threading.Event()
        self._parent = os.getppid()

    def run(self, kind: str, number: int, env: Mapping[str, str]) -> int:
        """Return the exit code of the load process. Raises BenchError when the host is lost or refused."""
        for reader in self._readers:
            reader.start()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: self._told_to_end.set())
        try:
            values = {name: value for name, value in env.items() if not _is_file(value)}
            files = {name: Path(env[name]).read_text() for name in env if name not in values}
            self._send({"kind": kind, "number": number, "env": values, "files": files})
            host = self._met()
            clock = self._clock()
            save_clock(self._folder, f"{kind}-{number}", clock)
            code = self._exchange(clock, host)
            after = self._clock()
            error_ns = max(clock.error_ns, after.error_ns)
            drift_ns = after.ahead_ns - clock.ahead_ns
            both = replace(clock, error_ns=error_ns, drift_ns=drift_ns)
            save_clock(self._folder, f"{kind}-{number}", both)
            return code
        finally:
            self._close()

    def _close(self) -> None:
        """End the connection, and with it the other end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_WITHIN_S)
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(END_WITHIN_S)
        self._process.stdout.close()
        self._process.stderr.close()

    def _met(self) -> str:
        """Return the name of the other host, which has the same code."""
        hello = self._answer()
        if hello["code"] != (here := code()):
            raise BenchError(
                f"{self._host}: its checkout is another one: commit {hello['commit'] or 'unknown'}, code "
                f"{hello['code']}; here commit {commit()}, code {here}"
            )
        return str(hello["host"])

    def _exchange(self, clock: Clock, host: str) -> int:
        """Pass on files until the load process has ended; return its exit code."""
        told = False
        while True:
            if self._told_to_end.is_set() and not told:
                told = True
                self._send({"end": True})
            if os.getppid() != self._parent:
                raise BenchError("the coordinator has ended")
            for name in (PROFILE, START, RATE, OVER):
                self._pass_on(name, clock, host)
            with contextlib.suppress(queue.Empty):
                line = self._next(POLL_S)
                if "code" in line:
                    return int(line["code"])
                self._take(line)

    def _pass_on(self, name: str, clock: Clock, host: str) -> None:
        path = self._folder / name
        if not path.exists() or self._sent.get(name) == (text := path.read_text()):
            return
        self._sent[name] = text
        if name == START:
            text = json.dumps(asdict(clock.there(Start(**json.loads(text)), host)))
        self._send({"name": name, "text": text})

    def _take(self, line: Mapping[str, Any]) -> None:
        path = self._folder / line["name"]
        if path.parent.parent != self._folder or path.parent.name not in (READY, PROGRESS, PARTS):
            raise BenchError(f"{self._host}: sends a file that no load process has: {line['name']}")
        path.parent.mkdir(exist_ok=True)
        replace_file(path, base64.b64decode(line["base64"]))

    def _clock(self) -> Clock:
        found = []
        for _ in range(PINGS):
            sent_ns, wall_ns = time.monotonic_ns(), time.time_ns()
            self._send({"ping": True})
            there = self._answer()
            half_ns = (time.monotonic_ns() - sent_ns) // 2
            found.append(
                Clock(
                    host=self._host,
                    ahead_ns=there["monotonic_ns"] - sent_ns - half_ns,
                    wall_ahead_ns=there["wall_ns"] - wall_ns - half_ns,
                    error_ns=half_ns,
                )
            )
        return min(found, key=lambda clock: clock.error_ns)

    def _send(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as fault:
            raise self._ended() from fault

    def _ended(self) -> BenchError:
        for reader in self._readers:
            reader.join(END_WITHIN_S)
        return BenchError(
            f"{self._host}: the connection has ended: {self._complaint or 'without a word'}"
        )

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line.decode(errors="replace"))
            self._complaint = line.decode(errors="replace").strip() or self._complaint

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._lines.put(dict(json.loads(line)))
            except (ValueError, TypeError):  # of a login shell
                self._complaint = f"not a line of bench remote: {line[:LINE_BYTES_SHOWN]!r}"
                break
        self._lines.put(None)

    def _next(self, within_s: float) -> dict[str, Any]:
        line = self._lines.get(timeout=within_s)
        if line is None:
            raise self._ended()
        return line

    def _answer(self) -> dict[str, Any]:
        try:
            return self._next(ANSWERS_WITHIN_S)
        except queue.Empty:
            raise BenchError(f"{self._host}: no answer within {ANSWERS_WITHIN_S:.0f} s") from None


def save_clock(folder: Path, name: str, clock: Clock) -> None:
    (folder / CLOCKS).mkdir(exist_ok=True)
    replace_file(folder / CLOCKS / f"{name}.json", json.dumps(asdict(clock)))


def _is_file(value: str) -> bool:
    """Return whether a variable names a file, which the other host needs too."""
    path = Path(value)
    return path.is_absolute() and path.is_file() and path.stat().st_size <= FILE_BYTES_MAX


class Remote:
    """The end there. folder: empty, of this load process alone. lines: of the relay."""

    def __init__(self, folder: Path, lines: Iterable[str], out: IO[str]) -> None:
        self._folder, self._lines, self._out = folder, iter(lines), out
        self._sending = threading.Lock()
        self._has_profile, self._is_over = threading.Event(), threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._seen: dict[Path, tuple[int, int]] = {}

    def run(self) -> None:
        wanted = json.loads(next(self._lines))
        self._send({"code": code(), "commit": commit(), "host": socket.gethostname()})
        threading.Thread(target=self._read, daemon=True).start()
        self._has_profile.wait()
        if self._is_over.is_set():
            return
        self._start(wanted)
        assert self._child is not None
        try:
            while self._child.poll() is None and not self._is_over.is_set():
                self._send_changed()
                time.sleep(POLL_S)
            if self._is_over.is_set():  # the relay has gone
                self._child.terminate()
                return
            self._send_changed()
            self._send({"code": self._child.returncode})
            self._is_over.wait(ANSWERS_WITHIN_S)
        finally:
            if self._child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(POLL_S * PINGS)
                self._child.kill()

    def _start(self, wanted: Mapping[str, Any]) -> None:
        secrets = self._folder / "files"
        secrets.mkdir(mode=0o700)
        for name, text in wanted["files"].items():
            (secrets / name).write_text(text)
        named = {name: str(secrets / name) for name in wanted["files"]}
        plain = {k: v for k, v in os.environ.items() if not k.startswith("MESSAGEBUS_")}
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench", "worker", "--run", str(self._folder)),
                *("--kind", wanted["kind"], "--number", str(wanted["number"])),
            ],
            cwd=CHECKOUT,
            env={**plain, **wanted["env"], **named},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )

    def _read(self) -> None:
        for text in self._lines:
            line = json.loads(text)
            if "ping" in line:
                self._send({"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()})
            elif "end" in line and self._child is not None:
                self._child.terminate()
            elif "name" in line:
                replace_file(self._folder / Path(line["name"]).name, line["text"])
                self._has_profile.set()
        self._is_over.set()
        self._has_profile.set()

    def _send_changed(self) -> None:
        """Send the files that are new or changed. The JSON of a part marks it as whole, and goes last."""
        paths = [
            path
            for each in (READY, PROGRESS, PARTS)
            for path in (self._folder / each).glob("[!.]*")
        ]
        for path in sorted(paths, key=lambda path: (path.suffix == ".json", path)):
            about = path.stat()
            if self._seen.get(path) != (state := (about.st_mtime_ns, about.st_size)):
                self._seen[path] = state
                content = base64.b64encode(path.read_bytes()).decode()
                self._send({"name": f"{path.parent.name}/{path.name}", "base64": content})

    def _send(self, line: Mapping[str, Any]) -> None:
        with self._sending:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()


@click.command()
@click.option("--host", required=True, help="[USER@]HOST[:PORT], for SSH.")
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), required=True, help="As of worker."
)
@click.option(
    "--kind", type=click.Choice([PUBLISHER, CONSUMER]), required=True, help="As of worker."
)
@click.option("--number", type=click.IntRange(min=0), required=True, help="As of worker.")
@click.option("--env", "names", multiple=True, help="A variable that it gets.")
def relay(host: str, folder: Path, kind: str, number: int, names: Sequence[str]) -> None:
    """Run one load process on another host: start it over SSH, exchange its files, compare the clocks."""
    there = ["env", "-C", str(CHECKOUT), sys.executable, "-m", "bench", "remote"]
    env = {name: os.environ[name] for name in names}
    sys.exit(Relay(host, folder, ssh_command(host, there)).run(kind, number, env))


@click.command()
def remote() -> None:
    """Run one load process for `relay`, which speaks to it by standard input and output."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _frame: sys.exit(128 + number))
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-") as folder:
        Remote(Path(folder), sys.stdin, sys.stdout).run()


def _remove_left() -> None:
    """Remove the folders, with their passwords, of processes of this user that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDERS}[0-9]*-*"):
        pid = path.name.removeprefix(FOLDERS).partition("-")[0]
        if not Path("/proc", pid).exists() and path.lstat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
