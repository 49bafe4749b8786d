"""The page over 64 brokers of 500 subscriptions each, with 20 viewers: its cost, and its first answer.

MINUTES of the environment is how long it is watched: 2 by default, 60 shows that its memory is level.

The agents are one process that answers as theirs do; a tenth of all rows changes every two seconds.
``python -m bench.figures.see.scale BROKERS NAMES`` is that process: it prints the address of their list and
serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

import httpx

from bench.errors import InputInvalid
from bench.figures.client.mesh import MB, rss_bytes_of
from bench.figures.form import Figure, Maker, at_most
from bench.figures.scene import Group, Scene, repeat_command
from bench.figures.see import page
from bench.processes import Answering
from messagebus_monitor.watch import LOOK_AT_MANY_EVERY_S, LOOK_EVERY_S, ROWS_OFTEN
from ops.local.preflight import taken

NAME = "see.scale"
BROKERS, NAMES, VIEWERS = 64, 500, 20
PAGES = ("/", "/subscriptions?sort=name", "/subscriptions/topic0/sub1")
SETTLE_S, SAMPLES = 40.0, 6
MINUTES, MINUTES_MAX = 2.0, 600.0
ANSWERS, STEP_S, FIRST_PORT, LAST_PORT = 20, 2.0, 24_000, 32_000
START_WITHIN_S = 120.0
GOAL_CPU_PERCENT, GOAL_MB, GOAL_GROWTH_MB = 25, 250, 5
GOAL_ANSWER_MS, GOAL_ANSWER_KB, GOAL_STATIC_KB, GOAL_UPDATE_MS = 50, 60, 130, 30


def _figures(scene: Scene) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME, scene.repeat))
    brokers, names = scene.part(BROKERS, 8), scene.part(NAMES, 50)
    seconds = _measured_s(scene)
    argv = [sys.executable, "-m", __name__, str(brokers), str(names)]
    with ExitStack() as stack:
        fleet = stack.enter_context(Answering(argv, _env(), START_WITHIN_S))
        env = {**_env(), "MESSAGEBUS_LIST_URL": fleet.line(), "MESSAGEBUS_USER": "bus"}
        env["MESSAGEBUS_PASSWORD"] = "any"
        address, pid = stack.enter_context(page.monitor(env, scene.folder))
        what = f"The page over {brokers} brokers x {names} subscriptions"
        cpu, memory = _watched(scene, seconds, address, pid)
        # The first half fills what is kept for the rules and for the last pages.
        cpu = cpu[len(cpu) // 2 :]
        told = f"{what}, {VIEWERS} viewers of {len(PAGES)} pages: CPU of the monitor a look"
        yield make("look_cpu_ms", told, cpu, "ms")
        # A busy machine delays looks: the CPU time of one counts, at the pace that the monitor keeps alone.
        pace_s = LOOK_EVERY_S if brokers * names <= ROWS_OFTEN else LOOK_AT_MANY_EVERY_S
        told = f"{told.removesuffix(' a look')}, of one core, a look every {pace_s:g} s"
        shares = [each / pace_s / 10 for each in cpu]
        yield make("cpu_percent", told, shares, "%", (at_most, GOAL_CPU_PERCENT))
        yield make("memory_mb", f"{what}: memory", max(memory), "MB", (at_most, GOAL_MB))
        half = memory[len(memory) // 2 :]
        minutes = seconds / 120
        told = f"{what}: growth of its memory in the last {minutes:g} minutes with viewers"
        grown = half[-1] - half[0]
        yield make("growth_mb", told, grown, "MB", (at_most, GOAL_GROWTH_MB))
        answers = [_first(address) for _ in range(scene.part(ANSWERS, 5))]
        told = f"{what}, the overview: first answer, median of {len(answers)}"
        usual = statistics.median(ms for ms, _ in answers)
        yield make("page_ms", told, usual, "ms", (at_most, GOAL_ANSWER_MS))
        told = f"{what}, the overview: first answer, gzipped"
        yield make("page_kb", told, answers[0][1] / 1_000, "KB", (at_most, GOAL_ANSWER_KB))
        with page.tab(address) as tab:
            files = (
                "performance.getEntriesByType('resource').filter(e => e.name.includes('static'))"
            )
            static = tab.evaluate(f"{files}.reduce((sum, e) => sum + e.encodedBodySize, 0)")
            told = "Script, style and font of the overview, loaded once"
            yield make("static_kb", told, static / 1_000, "KB", (at_most, GOAL_STATIC_KB))
            updates = _updates_ms(tab, scene.repeat)
        told = f"{what}, the overview: one update in Chromium, its mean over five"
        yield make("browser_ms", told, updates, "ms", (at_most, GOAL_UPDATE_MS))


def _env() -> dict[str, str]:
    return {key: each for key, each in os.environ.items() if not key.startswith("MESSAGEBUS_")}


def _measured_s(scene: Scene) -> int:
    """Return how long it is watched. Raises InputInvalid for MINUTES that are no such number."""
    text = os.environ.get("MINUTES", str(MINUTES))
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes <= MINUTES_MAX:
        raise InputInvalid(f"MINUTES: {text!r} is not a number above 0 and up to {MINUTES_MAX:g}")
    return scene.part(round(60 * minutes), 30)


def _watched(scene: Scene, seconds: int, address: str, pid: int) -> tuple[list[float], list[float]]:
    """Have viewers; return CPU in ms a look, and memory in MB, over time."""
    ending, cpu, memory = threading.Event(), list[float](), list[float]()
    viewers = threading.Thread(target=lambda: asyncio.run(_view(address, ending)))
    viewers.start()
    try:
        time.sleep(SETTLE_S)
        for _ in range(SAMPLES):
            memory.append(rss_bytes_of(pid) / MB)
            step_s = seconds / SAMPLES
            before, began_s = _looks(address), time.monotonic()
            (percent,) = page.cpu_percents([pid], step_s)
            looks = max(1, _looks(address) - before)
            cpu.append(percent * 10 * (time.monotonic() - began_s) / looks)
            scene.say(f"{percent:.1f} % of a core, {cpu[-1]:.0f} ms a look, {memory[-1]:.0f} MB")
        memory.append(rss_bytes_of(pid) / MB)
    finally:
        ending.set()
        viewers.join()
    return cpu, memory


def _looks(address: str) -> int:
    """Return the number of the monitor's observations so far."""
    told = httpx.get(f"{address}/metrics", trust_env=False, timeout=60).text
    found = re.search(r"observations_total (\d+)", told)
    return int(found[1]) if found else 0


async def _view(address: str, ending: threading.Event) -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))

        async def one(of: str, number: int) -> None:
            headers = {"User-Agent": f"viewer {number}"}
            params = {"of": of}
            async with http.stream("GET", f"{address}/stream", params=params, headers=headers) as s:
                async for _ in s.aiter_bytes():
                    pass

        pages = itertools.islice(itertools.cycle(PAGES), VIEWERS)
        tasks = [asyncio.create_task(one(of, number)) for number, of in enumerate(pages)]
        await asyncio.to_thread(ending.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first(address: str) -> tuple[float, int]:
    """Return milliseconds and bytes of an answer to somebody new, on a connection of its own."""
    with httpx.Client(trust_env=False, verify=False, timeout=60) as http:
        began_s = time.perf_counter()
        with http.stream("GET", address, headers={"Accept-Encoding": "gzip"}) as answer:
            size = sum(len(part) for part in answer.iter_raw())
        return (time.perf_counter() - began_s) * 1_000, size


def _updates_ms(tab: Any, repeat: int) -> list[float]:
    """Return the work of the browser's main thread for an update, a mean over five of them each."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    tab.evaluate(
        "() => { window.updates = 0;"
        " new MutationObserver(() => { window.updates += 1; })"
        ".observe(document.querySelector('main'),"
        " {subtree: true, childList: true, characterData: true, attributes: true}); }"
    )
    found = []
    for _ in range(repeat):
        before, count = _busy_s(session), tab.evaluate("window.updates")
        tab.wait_for_function("count => window.updates >= count + 5", arg=count)
        done = tab.evaluate("window.updates") - count
        found.append((_busy_s(session) - before) / done * 1_000)
    return found


def _busy_s(session: Any) -> float:
    told = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in told if each["name"] == "TaskDuration"))


def serve(brokers: int, names: int) -> None:
    """Serve the agents until the standard input ends."""
    from tests.support.fleet import Fleet

    blocks = range(FIRST_PORT, LAST_PORT, brokers)
    free = next(at for at in blocks if not taken([(page.HOST, at + n) for n in range(brokers)]))
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


GROUP = Group(NAME, 0, "simulated agents", _figures)

if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
