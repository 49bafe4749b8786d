"""The monitor over 64 brokers of 500 subscriptions each, with 20 viewers: CPU, memory, and its first answer.

The agents are one process that answers as theirs do; a tenth of all rows changes every two seconds.
``python -m bench.figures.monitor_page BROKERS NAMES`` is that process: it prints the address of their list
and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from bench.environment import CHECKOUT
from bench.figures.client.mesh import MB, rss_bytes_of
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import Group, Setup, repeat_command
from bench.processes import Answering, free_port, wait_until
from messagebus_monitor.watch import LOOK_AT_MANY_EVERY_S, LOOK_EVERY_S, ROWS_OFTEN
from ops.local.preflight import taken

NAME = "monitor.page"
BROKERS, NAMES, VIEWERS = 64, 500, 20
PAGES = ("/", "/subscriptions?sort=name", "/subscriptions/topic0/sub1")
SETTLE_S, SAMPLES, SAMPLE_S, ANSWERS = 40, 3, 20, 20
HOST, FIRST_PORT, LAST_PORT, STEP_S = "127.0.0.1", 24_000, 32_000, 2.0
START_WITHIN_S, STOP_WITHIN_S = 120.0, 20.0
GOAL_CPU_PERCENT, GOAL_MB, GOAL_ANSWER_MS, GOAL_ANSWER_KB = 25, 250, 50, 60


def page_figures(setup: Setup) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME))
    brokers, names = setup.part(BROKERS, 8), setup.part(NAMES, 50)
    argv = [sys.executable, "-m", __name__, str(brokers), str(names)]
    env = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    with Answering(argv, env, START_WITHIN_S) as agents:
        env |= {"MESSAGEBUS_LIST_URL": agents.line(), "MESSAGEBUS_USER": "bus"}
        env |= {"MESSAGEBUS_PASSWORD": "any"}
        with _monitor(env, setup.folder) as (address, pid):
            looks_ms, memory_mb = _watched(setup, address, pid)
            answers = [_first_answer(address) for _ in range(setup.part(ANSWERS, 5))]
    what = f"The monitor over {brokers} brokers x {names} subscriptions"
    # A busy machine delays looks: the CPU time of one counts, at the pace that the monitor keeps alone.
    pace_s = LOOK_EVERY_S if brokers * names <= ROWS_OFTEN else LOOK_AT_MANY_EVERY_S
    shares = [each / pace_s / 10 for each in looks_ms]
    seen = f"{what}, {VIEWERS} viewers of {len(PAGES)} pages: CPU, of one core"
    yield make("cpu_percent", seen, shares, "%", (at_most, GOAL_CPU_PERCENT))
    yield make("memory_mb", f"{what}: memory", memory_mb, "MB", (at_most, GOAL_MB))
    first, took = f"{what}, the overview: first answer", [ms for ms, _ in answers]
    yield make("page_ms", first, statistics.median(took), "ms", (at_most, GOAL_ANSWER_MS))
    yield make("page_kb", f"{first}, gzipped", answers[0][1], "KB", (at_most, GOAL_ANSWER_KB))


@contextmanager
def _monitor(env: Mapping[str, str], folder: Path) -> Iterator[tuple[str, int]]:
    """Run `messagebus monitor`; give its address and its process id."""
    listen = f"{HOST}:{free_port(HOST)}"
    argv = [sys.executable, "-m", "messagebus", "monitor", "--listen", listen]
    with (folder / "monitor.log").open("w") as log:
        process = subprocess.Popen(argv, cwd=CHECKOUT, env=dict(env), stdout=log, stderr=log)
    try:
        url = f"http://{listen}"
        wait_until(lambda: _knows(url), within_s=START_WITHIN_S, what="the monitor knows the bus")
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(STOP_WITHIN_S)


def _knows(url: str) -> bool:
    try:
        found = httpx.get(f"{url}/api/v1/overview", trust_env=False, timeout=60).json()
    except httpx.HTTPError:
        return False
    return bool(found["generation"] and not found["fault"])


def _watched(setup: Setup, address: str, pid: int) -> tuple[list[float], float]:
    """Have viewers; return the monitor's CPU time of a look in ms, some times, and its most memory in MB."""
    ending, looks_ms, memory_mb = threading.Event(), list[float](), 0.0
    viewers = threading.Thread(target=lambda: asyncio.run(_view(address, ending)))
    viewers.start()
    try:
        # Until what is kept for the rules and for the last pages is filled.
        time.sleep(setup.part(SETTLE_S, 5))
        for _ in range(SAMPLES):
            looks, cpu_s = _looks(address), _cpu_s(pid)
            time.sleep(setup.part(SAMPLE_S, 5))
            looks_ms.append((_cpu_s(pid) - cpu_s) * 1e3 / max(1, _looks(address) - looks))
            memory_mb = max(memory_mb, rss_bytes_of(pid) / MB)
            setup.say(f"{looks_ms[-1]:.0f} ms of CPU a look, {memory_mb:.0f} MB")
    finally:
        ending.set()
        viewers.join()
    return looks_ms, memory_mb


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _looks(address: str) -> int:
    """Return the number of the monitor's observations so far."""
    text = httpx.get(f"{address}/metrics", trust_env=False, timeout=60).text
    found = re.search(r"observations_total (\d+)", text)
    return int(found[1]) if found else 0


async def _view(address: str, ending: threading.Event) -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))

        async def one(of: str, number: int) -> None:
            headers, params = {"User-Agent": f"viewer {number}"}, {"of": of}
            async with http.stream("GET", f"{address}/stream", params=params, headers=headers) as s:
                async for _ in s.aiter_bytes():
                    pass

        pages = itertools.islice(itertools.cycle(PAGES), VIEWERS)
        tasks = [asyncio.create_task(one(of, number)) for number, of in enumerate(pages)]
        await asyncio.to_thread(ending.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first_answer(address: str) -> tuple[float, float]:
    """Return milliseconds and KB of an answer to somebody new, on a connection of its own."""
    with httpx.Client(trust_env=False, verify=False, timeout=60) as http:
        began_s = time.perf_counter()
        with http.stream("GET", address, headers={"Accept-Encoding": "gzip"}) as answer:
            size = sum(len(part) for part in answer.iter_raw())
        return (time.perf_counter() - began_s) * 1e3, size / 1e3


GROUP = Group(NAME, 0, "simulated agents", page_figures)


def serve(brokers: int, names: int) -> None:
    """Serve the agents until the standard input ends."""
    from tests.support.fleet import Fleet

    blocks = range(FIRST_PORT, LAST_PORT, brokers)
    free = next(at for at in blocks if not taken([(HOST, at + n) for n in range(brokers)]))
    fleet, ending = Fleet(brokers, names, first_port=free), threading.Event()

    def steps() -> None:
        while not ending.wait(STEP_S):
            with suppress(RuntimeError):
                fleet.step()

    with fleet.serving() as bus:
        stepping = threading.Thread(target=steps)
        stepping.start()
        print(bus.list_urls[0], flush=True)
        sys.stdin.read()
        ending.set()
        stepping.join()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
