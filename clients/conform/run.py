"""Running the cases: quiet ones side by side, then those that break brokers, one after the other."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clients.conform.cases import CASES, Case, NotRun
from clients.conform.program import Wrong
from clients.conform.stage import DELAYS, Bus, Stage

AT_ONCE = 4
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one case. detail: why it failed, or a figure."""

    number: int
    name: str
    level: str
    result: str
    seconds: float
    detail: str = ""

    @property
    def row(self) -> dict[str, Any]:
        return asdict(self)


def run_all(
    bus: Bus,
    command: Sequence[str],
    *,
    only: Sequence[int] = (),
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run the cases, all or those of these numbers, and return their results in their order."""
    wanted = [case for case in CASES if not only or case.number in only]
    prepare(bus, wanted)
    lock = threading.Lock()

    def judged(case: Case) -> Result:
        result = judge(bus, command, case)
        with lock:
            on_result(result)
        return result

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(judged, [case for case in wanted if not case.alone]))
    results += [judged(case) for case in wanted if case.alone]
    return sorted(results, key=lambda each: each.number)


def prepare(bus: Bus, cases: Sequence[Case]) -> None:
    """Register all topics and subscriptions at once: new quorum queues take seconds to settle."""
    names = list(DELAYS)
    for case in cases:
        topic = topic_of(bus, case)
        names += [topic, f"{topic}/s", *(each.format(topic) for each in case.extra)]
    bus.register(names)


def topic_of(bus: Bus, case: Case) -> str:
    return f"{bus.begin}{case.number:02}"


def judge(bus: Bus, command: Sequence[str], case: Case) -> Result:
    """Run one case. Anything unexpected fails it."""
    began_s = time.monotonic()
    result, detail = PASSED, ""
    try:
        if case.alone and bus.local is None:
            raise NotRun("needs a local cluster, to break it")
        with Stage(bus, command, topic_of(bus, case)) as stage:
            detail = case.run(stage) or ""
    except NotRun as why:
        result, detail = NOT_RUN, str(why)
    except Wrong as why:
        result, detail = FAILED, str(why)
    except Exception as fault:
        result, detail = FAILED, f"the kit itself: {type(fault).__name__}: {fault}"
    return Result(
        number=case.number,
        name=case.name,
        level=case.level,
        result=result,
        seconds=round(time.monotonic() - began_s, 2),
        detail=detail,
    )


@contextlib.contextmanager
def local_bus(folder: Path, *, patience: float = 1.0, tls: bool = True) -> Iterator[Bus]:
    """Start a cluster of three brokers, and beside it one broker that speaks TLS, in a folder; end both."""
    from ops.local.cluster import LocalCluster

    number = secrets.randbelow(250) + 1
    plain = LocalCluster(folder / "plain", 3, network=f"127.{number}.1")
    secure = LocalCluster(folder / "tls", 1, network=f"127.{number}.2", tls=True)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        both = [plain, secure] if tls else [plain]
        for each in both:
            stack.callback(each.down, wipe=True)
        list(pool.map(lambda each: each.up(), both))
        yield bus_of(plain, folder, patience=patience, secure=secure if tls else None)


def bus_of(cluster: Any, folder: Path, *, patience: float, secure: Any = None) -> Bus:
    """Return the bus of a local cluster that runs."""
    return Bus(
        brokers=cluster.brokers,
        agents=[cluster.node(name).agent for name in cluster.names],
        cluster=cluster.layout.cluster,
        user="bus",
        password=cluster.password.reveal(),
        folder=folder,
        begin=f"cf{secrets.token_hex(2)}-",
        patience=patience,
        local=cluster,
        tls=secure.client_env() if secure else {},
    )
