"""`messagebus worker` as a process: its end, its health, its children. Brokers are in memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from bench.processes import free_port as any_free_port
from tests.support.eventually import FACTOR, eventually

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60

# Each process has its own bus; what it starts with is published at the import.
SHOP = """
    import asyncio, os, sys, threading, time
    from messagebus import App, Delivery
    from messagebus.testing import MemoryBus

    bus = MemoryBus(brokers=2)
    bus.declare("orders/billing", "queue:jobs")
    app = App()
    app.use(bus)
    with bus.publisher() as publisher:
        for text in os.environ.get("SHOP_ORDERS", "").split():
            publisher.send_safe("orders", text)

    def told(text):
        with open(f"told.{os.getpid()}", "a") as file:
            file.write(text + "\\n")

    @app.subscriber("orders", subscription="billing", concurrency=4)
    async def bill(order: str) -> None:
        told(f"began {order}")
        if order == "slow":
            await asyncio.sleep(0.5)
        if order == "endless":
            await asyncio.Event().wait()
        if order == "stuck":
            time.sleep(3)
        if order == "crash":
            os._exit(7)
        told(f"ended {order}")

    @app.subscriber("queue:jobs")
    def work(job: str) -> None:
        told(f"job {job}")
"""


class Shop:
    """A folder with an application, and workers of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[str]] = []
        self.write("shop", SHOP)

    def write(self, module: str, text: str) -> None:
        (self.folder / f"{module}.py").write_text(textwrap.dedent(text))

    def worker(self, *options: str, orders: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "messagebus", "worker", *options]
        self.workers.append(
            subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "SHOP_ORDERS": orders},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )
        return self.workers[-1]

    def told(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("told.*")))

    def heard(self, text: str, count: int = 1) -> None:
        eventually(
            lambda: self.told().count(text) >= count,
            within_s=WITHIN_S,
            what=f"{text} {count} times",
        )


HANDLING = " INFO messagebus.worker handling subscription="


def besides_its_handlers(said: str) -> str:
    """Return the output without the first lines, which name the handlers."""
    return "".join(line for line in said.splitlines(True) if HANDLING not in line)


def end(worker: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    """Send the signal, wait, return exit code and output."""
    worker.send_signal(number)
    _, said = worker.communicate(timeout=60 * FACTOR)
    return worker.returncode, said


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    for worker in made.workers:
        with worker:  # closes its pipe, and waits
            worker.kill()


@pytest.fixture
def free_port() -> int:
    return any_free_port()


def answered(port: int, path: str) -> Callable[[], httpx.Response | None]:
    def ask() -> httpx.Response | None:
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5, verify=False)
        except httpx.HTTPError:
            return None

    return ask


def is_answered(port: int, path: str, code: int) -> httpx.Response:
    ask = answered(port, path)

    def wanted() -> httpx.Response | None:
        found = ask()
        return found if found is not None and found.status_code == code else None

    found = eventually(wanted, within_s=WITHIN_S, what=f"{path} {code}")
    assert found is not None
    return found


# One process.
@pytest.mark.guarantee("told-to-end-finishes")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_is_finished_before_a_polite_end(shop: Shop, number: int) -> None:
    worker = shop.worker("shop:app", orders="slow")
    shop.heard("began slow")
    code, said = end(worker, number)
    assert (code, besides_its_handlers(said)) == (0, "")
    assert "handling subscription=orders/billing handler=shop.bill\n" in said
    assert shop.told() == "began slow\nended slow\n"


@pytest.mark.guarantee("told-to-end-finishes")
def test_what_cannot_be_finished_is_said_in_one_line(shop: Shop) -> None:
    worker = shop.worker("shop:app", "--grace-s", "0.2", orders="endless a")
    shop.heard("ended a")
    code, said = end(worker)
    assert code == 1
    last = said.strip().split("\n")[-1]
    assert last == (
        "messagebus: stopped; not finished within 0.2 s, to be delivered again: orders/billing 1"
    )


def test_a_second_signal_ends_it_at_once(shop: Shop) -> None:
    worker = shop.worker("shop:app", "--grace-s", "600", orders="endless")
    shop.heard("began endless")
    worker.send_signal(signal.SIGTERM)

    def ended() -> bool:
        worker.send_signal(signal.SIGTERM)
        return worker.poll() is not None

    eventually(ended, within_s=WITHIN_S)
    assert worker.returncode == -signal.SIGTERM


def test_it_is_ready_while_attached_and_live_while_it_turns(shop: Shop, free_port: int) -> None:
    worker = shop.worker("shop", "--health", f"127.0.0.1:{free_port}", orders="endless")
    ready = is_answered(free_port, "/ready", 200).json()
    assert ready["subscriptions"]["orders/billing"]["brokers"] == {
        "memory-1:5672": "open",
        "memory-2:5672": "open",
    }
    is_answered(free_port, "/live", 200)
    metrics = is_answered(free_port, "/metrics", 200).text
    assert 'messagebus_clients_running{client="worker"} 1.0' in metrics
    is_answered(free_port, "/elsewhere", 404)
    shop.heard("began endless")
    worker.send_signal(signal.SIGTERM)
    assert is_answered(free_port, "/ready", 503).json()["status"] == "stopping"
    is_answered(free_port, "/live", 200)


def test_a_handler_that_holds_the_loop_is_named(shop: Shop) -> None:
    worker = shop.worker("shop", orders="stuck")
    shop.heard("ended stuck")
    code, said = end(worker)
    assert code == 0
    assert re.search(r"loop stuck stuck_s=\d\.\d at='.*shop.py:\d+ bill'", said), said


# Wrong use.
@pytest.mark.parametrize("processes", ["1", "3"])
def test_a_module_that_does_not_import_is_one_line(shop: Shop, processes: str) -> None:
    shop.write("broken", "import shop\n\n1 / 0\n")
    worker = shop.worker("broken:app", "--processes", processes)
    _, said = worker.communicate(timeout=60 * FACTOR)
    assert worker.returncode == 2
    assert said == (
        "messagebus: broken does not import: ZeroDivisionError: division by zero"
        f" ({shop.folder}/broken.py:3) [messagebus explain configerror]\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["shop:app", "--health", "x"], "health 'x': HOST:PORT wanted"),
        (["shop:app", "--health", "192.0.2.1:1"], "health 192.0.2.1:1: "),
        (["shop:other"], "shop has no 'other': its apps are app"),
        (["idle:app"], "the app has no subscriber: nothing to run"),
        (["real:app"], "broker 'host:port': "),
        (["real:app", "--processes", "2"], "broker 'host:port': "),
    ],
)
def test_wrong_use_is_one_line(shop: Shop, options: list[str], said: str) -> None:
    shop.write("idle", "from messagebus import App\napp = App()\n")
    shop.write(
        "real",
        """
        import os
        from messagebus import App
        os.environ["MESSAGEBUS_BROKER"] = "host:port"
        app = App()
        @app.subscriber("queue:jobs")
        def work(job: str) -> None: ...
        """,
    )
    worker = shop.worker(*options)
    _, found = worker.communicate(timeout=60 * FACTOR)
    assert worker.returncode == 2
    assert found.startswith(f"messagebus: {said}"), found
    assert found.count("\n") == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_where_nobody_listens_it_says_so_and_ends(
    shop: Shop, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESSAGEBUS_BROKER", "127.0.0.1:1")
    shop.write(
        "real",
        """
        from messagebus import App
        app = App()
        @app.subscriber("queue:jobs")
        def work(job: str) -> None: ...
        """,
    )
    worker = shop.worker("real:app", "--processes", processes)
    _, said = worker.communicate(timeout=60 * FACTOR)
    assert (worker.returncode, said.count("\n")) == (6, 1), said
    assert said.startswith("messagebus: no answer from 127.0.0.1:1 (")


# Several processes.
def children(worker: subprocess.Popen[str]) -> set[int]:
    listed = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text()
    return {int(each) for each in listed.split()}


def test_children_are_stopped_together(shop: Shop, free_port: int) -> None:
    worker = shop.worker(
        "shop:app", "--processes", "2", "--health", f"127.0.0.1:{free_port}", orders="slow"
    )
    shop.heard("began slow", 2)
    ready = is_answered(free_port, "/ready", 200).json()
    assert set(ready["workers"]) == {"worker 1", "worker 2"}
    is_answered(free_port, "/live", 200)
    shown = is_answered(free_port, "/metrics", 200).text
    for name in ("worker 1", "worker 2"):
        assert re.search(rf'^messagebus_clients_running{{.*process="{name}".*}} 1', shown, re.M)
    code, said = end(worker)
    # A machine without time for the worker has it warn of its brokers.
    told = besides_its_handlers(said).splitlines()
    told = [line for line in told if " WARNING messagebus.consumer " not in line]
    assert (code, told) == (0, [])
    assert shop.told().count("ended slow") == 2


def test_a_killed_child_is_started_again(shop: Shop) -> None:
    worker = shop.worker("shop:app", "--processes", "2", orders="a")
    shop.heard("ended a", 2)
    victim = min(children(worker))
    os.kill(victim, signal.SIGKILL)
    shop.heard("ended a", 3)
    assert victim not in children(worker)
    code, said = end(worker)
    assert code == 0
    told = besides_its_handlers(said)
    assert re.fullmatch(r"messagebus: worker \d was ended by SIGKILL; again in [01]\.\d s\n", told)


def test_a_child_that_crashes_again_and_again_is_started_ever_later(shop: Shop) -> None:
    worker = shop.worker("shop:app", "--processes", "2", orders="crash")
    shop.heard("began crash", 5)
    _, said = end(worker)
    waits = [float(each) for each in re.findall(r"worker 1 ended .* again in (\d\.\d) s", said)]
    assert len(waits) >= 2
    assert waits[-1] > waits[0]


@pytest.mark.guarantee("told-to-end-finishes")
def test_children_end_when_their_parent_is_killed(shop: Shop) -> None:
    worker = shop.worker("shop:app", "--processes", "2", orders="a")
    shop.heard("ended a", 2)
    left = children(worker)
    assert len(left) == 2
    worker.kill()
    worker.communicate(timeout=60 * FACTOR)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), within_s=WITHIN_S)


SLOW = """
    import os, time
    from pathlib import Path
    from messagebus import App
    from messagebus.testing import MemoryBus

    Path(f"importing.{os.getpid()}").touch()
    while not Path("go_on").exists():
        time.sleep(0.02)
    if Path("broken").exists():
        1 / 0
    bus = MemoryBus()
    bus.declare("queue:jobs")
    app = App()
    app.use(bus)

    @app.subscriber("queue:jobs")
    def work(job: str) -> None: ...
"""


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.guarantee("no-child-outlives-its-parent")
def test_children_that_import_end_when_their_parent_is_killed(shop: Shop) -> None:
    shop.write("slow", SLOW)
    worker = shop.worker("slow:app", "--processes", "2")
    eventually(lambda: list(shop.folder.glob("importing.*")), within_s=WITHIN_S)
    left = children(worker)
    assert left
    worker.kill()
    worker.communicate(timeout=60 * FACTOR)
    eventually(lambda: not any(map(is_there, left)), within_s=WITHIN_S)


def test_a_long_import_is_live_and_not_ready_alone_and_in_children(
    shop: Shop, free_port: int
) -> None:
    shop.write("slow", SLOW)
    for options in ((), ("--processes", "2")):
        worker = shop.worker("slow:app", "--health", f"127.0.0.1:{free_port}", *options)
        is_answered(free_port, "/live", 200)
        is_answered(free_port, "/ready", 503)
        (shop.folder / "go_on").touch()
        is_answered(free_port, "/ready", 200)
        assert end(worker)[0] == 0
        (shop.folder / "go_on").unlink()


@pytest.mark.guarantee("no-child-outlives-its-parent")
def test_a_child_that_cannot_start_again_stops_no_healthy_one(shop: Shop, free_port: int) -> None:
    shop.write("slow", SLOW)
    (shop.folder / "go_on").touch()
    worker = shop.worker("slow:app", "--processes", "3", "--health", f"127.0.0.1:{free_port}")
    is_answered(free_port, "/ready", 200)
    healthy = children(worker)
    victim = healthy.pop()
    (shop.folder / "broken").touch()
    os.kill(victim, signal.SIGKILL)
    is_answered(free_port, "/ready", 503)
    imports = len(list(shop.folder.glob("importing.*")))
    eventually(lambda: len(list(shop.folder.glob("importing.*"))) > imports, within_s=WITHIN_S)
    shown = is_answered(free_port, "/metrics", 200).text
    ups = re.findall(r"^messagebus_worker_up{.*} (.*)$", shown, re.M)
    assert sorted(ups) == ["0.0", "1.0", "1.0"]
    (shop.folder / "broken").unlink()
    is_answered(free_port, "/ready", 200)
    assert healthy < children(worker)
    code, said = end(worker)
    assert code == 0
    assert "ended with exit code 2; again in" in said


@pytest.mark.guarantee("no-child-outlives-its-parent")
def test_a_signal_to_all_of_them_is_as_good_as_one_to_the_parent(shop: Shop) -> None:
    """systemd sends it so, and a terminal: the children hear it, and their parent passes it on."""
    worker = shop.worker("shop:app", "--processes", "2", orders="slow")
    shop.heard("began slow", 2)
    for pid in children(worker):
        os.kill(pid, signal.SIGTERM)
    code, said = end(worker)
    assert (code, besides_its_handlers(said)) == (0, "")
    assert shop.told().count("ended slow") == 2


def test_a_second_signal_ends_the_children_at_once(shop: Shop) -> None:
    worker = shop.worker("shop:app", "--processes", "2", "--grace-s", "600", orders="endless")
    shop.heard("began endless", 2)
    left = children(worker)
    worker.send_signal(signal.SIGTERM)

    def ended() -> bool:
        worker.send_signal(signal.SIGTERM)
        return worker.poll() is not None

    eventually(ended, within_s=WITHIN_S)
    assert worker.returncode in (1, -signal.SIGTERM)  # it may hear one more on its way out
    eventually(lambda: not any(map(is_there, left)), within_s=WITHIN_S)


CANCELLING = """
    import asyncio
    from messagebus import App
    from messagebus.testing import MemoryBus

    bus = MemoryBus()
    bus.declare("queue:jobs")
    app = App()
    app.use(bus)
    with bus.publisher() as publisher:
        publisher.send_safe("queue:jobs", "one")

    @app.subscriber("queue:jobs")
    async def work(job: str) -> None:
        for task in asyncio.all_tasks():
            if task.get_coro().__name__ == "_handle":
                task.cancel()
"""


@pytest.mark.guarantee("run-ends-only-itself")
def test_a_runner_that_ended_is_an_error_and_costs_the_exit_code(shop: Shop) -> None:
    shop.write("cancelling", CANCELLING)
    worker = shop.worker("cancelling:app")
    _, said = worker.communicate(timeout=60 * FACTOR)
    assert worker.returncode == 1
    assert "handling ended source=queue:jobs" in said
    assert (
        said.strip()
        .splitlines()[-1]
        .startswith("messagebus: handling of queue:jobs ended by itself: CancelledError")
    )


def test_a_child_that_cannot_finish_is_said_and_costs_the_exit_code(shop: Shop) -> None:
    worker = shop.worker("shop:app", "--processes", "2", "--grace-s", "0.2", orders="endless")
    shop.heard("began endless", 2)
    began_s = time.monotonic()
    code, said = end(worker)
    assert code == 1
    assert said.count("not finished within 0.2 s, to be delivered again: orders/billing 1") == 2
    assert time.monotonic() - began_s < WITHIN_S * FACTOR


FAILING = """
    from messagebus import App
    from messagebus.testing import MemoryBus

    bus = MemoryBus()
    bus.declare("queue:jobs")
    app = App()
    app.use(bus)
    with bus.publisher() as publisher:
        publisher.send_safe("queue:jobs", "one")

    @app.subscriber("queue:jobs")
    def work(job: str) -> None:
        with open("told.1", "a") as file:
            file.write("failed\\n")
        raise ValueError("login password=hunter2 refused\\nsecond line " + "x" * 1_000_000)
"""


@pytest.mark.parametrize("options", [(), ("--processes", "2", "-v")])
def test_logs_are_json_on_request_one_line_each_and_short(
    shop: Shop, options: tuple[str, ...]
) -> None:
    shop.write("failing", FAILING)
    worker = shop.worker("failing:app", "--log", "json", *options)
    shop.heard("failed")
    _, said = end(worker)
    lines = [json.loads(line) for line in said.splitlines()]
    failed = [line for line in lines if line["event"] == "run failed"]
    assert failed[0]["source"] == "queue:jobs"
    assert failed[0]["level"] == "WARNING"
    assert "hunter2" not in said
    assert all(len(line) < 10_000 for line in said.splitlines())
    assert "handling" in {line["event"] for line in lines}
