"""Processes of `messagebus gateway` for figures and tests, each at an address that it keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from bench.errors import BenchError
from bench.processes import free_port
from messagebus import BusConfig

START_WITHIN_S, END_WITHIN_S = 60.0, 60.0


class GatewayProcess:
    """A gateway of anybody on loopback. more: further lines of its file of settings."""

    def __init__(self, folder: Path, name: str, bus: BusConfig, more: str = "") -> None:
        self.port, self._admin = free_port(), free_port()
        self.url, self.admin_url = (f"http://127.0.0.1:{port}" for port in (self.port, self._admin))
        self._path = folder / f"{name}.toml"
        told: dict[str, object] = {"broker": bus.broker, "list_urls": list(bus.list_urls)}
        told["user"] = bus.user
        if bus.password_file:
            told["password_file"] = bus.password_file
        else:
            told["password"] = bus.password.reveal()
        self._path.touch(mode=0o600)
        self._path.write_text(
            f'name = "{name}"\nanonymous = "all"\nlisten = "127.0.0.1:{self.port}"\n'
            f'admin = "127.0.0.1:{self._admin}"\ndrain_s = 0.1\ngrace_s = 1.0\n[bus]\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in told.items())
            + more
        )
        self._start()

    def _start(self) -> None:
        argv = [sys.executable, "-m", "messagebus", "gateway", "--config", str(self._path)]
        self._process = subprocess.Popen(argv)
        until_s = time.monotonic() + START_WITHIN_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until_s:
                self.end()
                raise BenchError("the gateway does not start")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.admin_url}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill it by SIGKILL, and start it again."""
        self._process.kill()
        self._process.wait()
        self._start()

    def end(self) -> int:
        """End it politely. Returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(END_WITHIN_S)

    @property
    def cpu_s(self) -> float:
        """The CPU time that it has used."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        lines = httpx.get(f"{self.admin_url}/metrics", trust_env=False).text.splitlines()
        return next(float(each.split()[1]) for each in lines if each.startswith(f"{name} "))
