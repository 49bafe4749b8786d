"""The pages beside the demo: the monitor's, with its address and a picture, and that of the live Spark job.

The picture needs Playwright and Debian's Chromium; without them, or when anything about a page fails, the
demo goes on without it.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pyarrow.parquet as pq

from bench.demo.live_run import TOPIC, LiveRun
from bench.demo.screen import CONFIRMED
from bench.errors import BenchError
from ops.errors import OpsError
from ops.local.preflight import free_port
from reports.page import with_picture

CHROMIUM, PICTURE, LIVE, MONITOR = "chromium", "page.png", "live", "monitor"
TITLE = "The monitor's page, with a broker killed"
HOST, FIRST_PORT = "127.0.0.1", 8_085
WIDTH, HEIGHT, WITHIN_MS = 1_560, 1_000, 60_000
# Tables of the live job that are remembered, one for each batch of 2 s or more.
BATCHES_MAX = 4_096
# Curves and rates need a few observations.
LOOKED_AT_MS = 3_000


def show(run: LiveRun) -> None:
    """Start the monitor beside the load, and print its address, unless it does not start."""
    with suppress(BenchError, OpsError):
        listen = f"{HOST}:{free_port(HOST, FIRST_PORT)}"
        run.start(MONITOR, ["messagebus", "monitor", "--listen", listen], client=True)
        run.address_of_page = f"http://{listen}/"
        run.screen.say(f"the page of the bus: {run.address_of_page}")


def photograph(run: LiveRun) -> None:
    """Begin to take a picture of the page, where that can be done; wait for nothing."""
    if run.address_of_page and shutil.which(CHROMIUM) and importlib.util.find_spec("playwright"):
        with suppress(BenchError):
            run.start("picture", [__name__, run.address_of_page, str(run.folder / PICTURE)])


def follow(run: LiveRun) -> None:
    """Start the live Spark job beside the load: it reads the topic's streams."""
    argv = ["spark", "live", "--topic", TOPIC, "--out", str(run.folder / LIVE)]
    run.start(LIVE, argv, client=True)


def read_to_the_end(run: LiveRun, name: str) -> None:
    """Wait until the live job has read what this broker has confirmed, or has ended by itself."""
    at = run.view.addresses[name]
    run.note(f"waiting until the live job has read the stream of {name}")
    with suppress(BenchError):
        _wait_for_live(
            run,
            lambda: messages_read(run)[at] >= run.view.counts[CONFIRMED, name],
            f"the live job reads the stream of {name}",
        )


def end_live(run: LiveRun) -> None:
    """Wait until the live job has read what is stored, and end it; say why it ended by itself."""
    live = run.children.child(LIVE)
    with suppress(BenchError):
        _wait_for_live(
            run,
            lambda: messages_read(run).total() >= run.view.published,
            "the live job's last batch",
        )
        if live.exit_code is not None:
            run.screen.say(f"the live job ended by itself: {live.last_line()} ({live.log})")
        run.children.terminate([LIVE])
        _wait_for_live(run, lambda: False, "the live job's end")


def _wait_for_live(run: LiveRun, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, or for the end of the live job."""
    live = run.children.child(LIVE)
    run.wait(lambda: live.exit_code is not None or condition(), what, silent=live)


def messages_read(run: LiveRun) -> Counter[str]:
    """Return broker -> messages in the tables of the live job; none while one of them is being written."""
    minutes, found = run.folder / LIVE / "tables" / "minutes", Counter[str]()
    try:
        for table in minutes.glob("batch=*/*.parquet"):
            found.update(_counted(table, table.stat().st_mtime_ns))
    except OSError:
        return Counter()
    return found


# A wait asks several times a second, and a batch changes only when it is written again.
@lru_cache(BATCHES_MAX)
def _counted(table: Path, _written_ns: int) -> Counter[str]:
    found = Counter[str]()
    for row in pq.read_table(table, columns=["broker", "messages"]).to_pylist():
        found[row["broker"]] += row["messages"]
    return found


def into_report(run: LiveRun, report: Path) -> Path | None:
    """Put the picture beside the report, and into its page. Returns its path; None without one."""
    picture, page = run.folder / PICTURE, report / "report.html"
    if not (picture.is_file() and page.is_file()):
        return None
    page.write_text(with_picture(page.read_text(), TITLE, picture.read_bytes()))
    return picture.rename(report / PICTURE)


def main(address: str, path: str) -> None:
    """Take a picture of a page once it is live."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(WITHIN_MS)
        page.goto(address)
        page.wait_for_timeout(LOOKED_AT_MS)
        page.screenshot(path=path, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
