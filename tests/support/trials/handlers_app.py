"""The application of `tests.support.trials.handlers`: handlers that end in every possible way.

A message says what its handler is to do (`KINDS`). A completed handling is recorded at once with a write of
its own, because any handler may end the process in the next moment.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal, NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from messagebus import App, Delivery, Park, Reject, RetryLater, RetryPolicy
from messagebus.recording.recorder import Recorder
from messagebus.telemetry.otel import OpenTelemetry
from messagebus.telemetry.prometheus import PrometheusHooks
from messagebus.telemetry.tracecontext import TraceContext

FOLDER_SETTING = "HANDLERS_TRIAL_FOLDER"
FOLDER = Path(os.environ.get(FOLDER_SETTING, "."))
QUEUES = ("queue:trial-coroutine", "queue:trial-plain", "queue:trial-batch")
OUT = "queue:trial-out"
# On a busy machine a process may stand still for a second; all its runs would exceed a shorter limit.
LIMIT_S = 3.0
DONE_BYTES = 10
# A run that others cancel again and again is given up at some time; hardly ever after this many attempts.
POLICY = RetryPolicy(
    attempts_max=20, first_delay_s=0, delay_max_s=1, retry_on=(Exception, SystemExit)
)


class Kind(NamedTuple):
    """A kind of handling.

    share: of the messages. ends: done or parked. reason: beginning of a parked one's reason.
    """

    share: float
    ends: Literal["done", "parked"] = "done"
    reason: str = ""


KINDS = {
    "returns": Kind(0.80),
    "publishes": Kind(0.05),
    "raises": Kind(0.04),
    "asks for later": Kind(0.02),
    "cancels itself": Kind(0.02),
    "cancels others": Kind(0.01),
    "swallows a cancel": Kind(0.01),
    "is not judged": Kind(0.01),
    "hangs": Kind(0.001),
    "parks": Kind(0.01, "parked", "asked to"),
    "rejects": Kind(0.005, "parked", "asked to"),
    "parks in a group": Kind(0.005, "parked", "asked to"),
    "has no text": Kind(0.005, "parked", "(its text fails"),
    "does not fit": Kind(0.005, "parked", "payload does not fit"),
    # A few, chosen by the trial: each costs a process.
    "exits": Kind(0),
}


class NotJudged(RetryLater):
    def __init__(self) -> None:
        pass


class NoText(Park):
    def __str__(self) -> str:
        raise TypeError("no text")


class _Discard(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _hooks() -> list[Any]:
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(_Discard()))
    recorder = Recorder(
        FOLDER / "rows", run_id="trial", share=0.1, file_bytes_max=4 << 20, files_max=2
    )
    recorder.start()
    atexit.register(recorder.stop)
    telemetry = OpenTelemetry(tracer_provider=tracers, meter_provider=MeterProvider())
    return [telemetry, PrometheusHooks(), recorder, TraceContext()]


app = App(hooks=_hooks() if FOLDER_SETTING in os.environ else ())
_tasks: deque[asyncio.Task[Any]] = deque(maxlen=20)
_lock = threading.Lock()
_files: dict[str, int] = {}


def _done(number: int, what: str = "done") -> None:
    with _lock:
        file = _files.get(what)
        if file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            file = _files[what] = os.open(FOLDER / f"{what}.{os.getpid()}", flags)
    os.write(file, b"%9d\n" % number)


def _exit_once(number: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(FOLDER / f"exit.{number}", os.O_CREAT | os.O_EXCL))
        os._exit(7)


def _asked(kind: str, number: int, is_first: bool) -> object:
    """Do what the message asks: return or raise, in the same way for all kinds of handlers."""
    match kind:
        case "parks":
            raise Park("asked to")
        case "rejects":
            return Reject("asked to")
        case "parks in a group":
            raise ExceptionGroup("all", [ValueError("x"), Park("asked to")])
        case "has no text":
            raise NoText("x")
        case "raises" if is_first:
            raise random.choice((ValueError, SystemExit, OSError))("x")
        case "asks for later" if is_first:
            return RetryLater(0)
        case "is not judged" if is_first:
            raise NotJudged
        case "exits":
            _exit_once(number)
    return None


def _ended(kind: str, number: int, is_first: bool) -> object:
    """Do what the message asks, and note it when that is a completed handling."""
    if (answer := _asked(kind, number, is_first)) is None:
        _done(number)
    return answer


@app.subscriber(QUEUES[0], concurrency=50, retry=POLICY, time_limit_s=LIMIT_S)
async def coroutine(order: dict[str, int | str], delivery: Delivery) -> object:
    number, kind = int(order["number"]), str(order["kind"])
    task = asyncio.current_task()
    assert task is not None
    first = delivery.attempt == 1
    _tasks.append(task)
    match kind:
        case "publishes":
            await app.publisher.send_safe(OUT, str(number), message_id=f"out-{number}")
        case "cancels itself" if first:
            task.cancel()
            await asyncio.sleep(60)
        case "cancels others" if first:
            random.choice(_tasks).cancel()
            await asyncio.sleep(0)
        case "swallows a cancel":
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        case "hangs" if first:
            await asyncio.sleep(60)
    return _ended(kind, number, first)


@app.subscriber(QUEUES[1], concurrency=8, retry=POLICY, time_limit_s=LIMIT_S)
def plain(order: dict[str, int | str], delivery: Delivery) -> object:
    number, kind = int(order["number"]), str(order["kind"])
    if kind == "publishes":
        app.publish_blocking(OUT, str(number), message_id=f"out-{number}")
    if kind == "hangs" and delivery.attempt == 1:
        time.sleep(LIMIT_S + 1)
    return _ended(kind, number, delivery.attempt == 1)


@app.subscriber(QUEUES[2], batch=100, linger_s=0.05, concurrency=2, retry=POLICY)
async def batch(orders: list[dict[str, int | str]], deliveries: list[Delivery]) -> object:
    async def one(order: dict[str, int | str], delivery: Delivery) -> object:
        number, kind, first = int(order["number"]), str(order["kind"]), delivery.attempt == 1
        if kind == "publishes":
            await app.publisher.send_safe(OUT, str(number), message_id=f"out-{number}")
        if kind in ("cancels itself", "hangs") and first:
            raise asyncio.CancelledError
        try:
            return _ended(kind, number, first)
        except SystemExit as error:
            return error

    ends = [one(*each) for each in zip(orders, deliveries, strict=True)]
    results = await asyncio.gather(*ends, return_exceptions=True)
    if random.random() < 0.01:
        raise ValueError("all of it, although it is done")
    return dict(zip(deliveries, results, strict=True))


@app.subscriber(OUT, concurrency=20)
async def out(number: str) -> None:
    _done(int(number), "out")
