"""A monitor as a process, a tab of Chromium at it, and what both cost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.processes import free_port, wait_until

WITHIN_S, STOP_WITHIN_S = 60.0, 20.0
HOST = "127.0.0.1"
WIDTH, HEIGHT = 1_560, 1_000


@contextmanager
def monitor(env: Mapping[str, str], folder: Path, *words: str) -> Iterator[tuple[str, int]]:
    """Run `messagebus monitor`; give its address and its process id."""
    address = f"{HOST}:{free_port(HOST)}"
    argv = [sys.executable, "-m", "messagebus", "monitor", "--listen", address, *words]
    with (folder / "monitor.log").open("w") as log:
        process = subprocess.Popen(
            argv, cwd=CHECKOUT, env={**os.environ, **env}, stdout=log, stderr=log
        )
    try:
        url = f"http://{address}"
        wait_until(lambda: _knows(url), within_s=WITHIN_S, what="the monitor knows the bus")
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(STOP_WITHIN_S)


def _knows(url: str) -> bool:
    try:
        told = httpx.get(f"{url}/api/v1/overview", trust_env=False).json()
    except httpx.HTTPError:
        return False
    return bool(told["generation"] and not told["fault"])


@contextmanager
def tab(address: str) -> Iterator[Any]:
    """Open a page in Chromium; give Playwright's page. Raises BenchError without either."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        raise BenchError("chromium and Playwright are wanted: ops/local/install.sh --also chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(WITHIN_S * 1_000)
        page.goto(address)
        yield page
        browser.close()


def until_told(page: Any, selector: str, words: str, act: Callable[[], object]) -> float:
    """Do something; return the seconds from its begin until a part of the page has one of these words.

    words: a regular expression of JavaScript. The page is looked at in each of its frames.
    """
    began_s = time.monotonic()
    act()
    page.wait_for_function(
        "([at, words]) => new RegExp(words).test(document.querySelector(at)?.innerText ?? '')",
        arg=[selector, words],
    )
    return time.monotonic() - began_s


def cpu_percents(pids: list[int], for_s: float) -> list[float]:
    """Return what each process takes of one core meanwhile."""
    before, began_s = [_cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(for_s)
    took_s = time.monotonic() - began_s
    return [100 * (_cpu_s(pid) - was) / took_s for pid, was in zip(pids, before, strict=True)]


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
