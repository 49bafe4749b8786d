"""The live job's tables and page: sums of batches are those of the whole, and a batch is written once."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from messagebus import LoginRefused
from messagebus.commands.exits import Exit
from reports.text import cell
from spark.__main__ import main
from spark.lake.places import Remote, address_of
from spark.live import AGAIN_MAX, Sink, follow, known, page_of, waiting, write_page
from spark.measures.stored import MINUTE_MS, aged, by_minute, merged, spread
from spark.pack import LEFT_OUT, PACKAGES, pack
from spark.source import SCHEMA, Streams

Row = tuple[str, int, int, str, str, int, str, None, bytes | None, int, str | None]
ROWS: list[Row] = [
    (f"mb{1 + n % 3}", n, 0, f"id-{n}", "", MINUTE_MS * (n // 40), "", None, b"x" * n, n, None)
    for n in range(1, 100)
]
GAP = ("mb1", 7, None, None, None, None, None, None, None, None, "messages were dropped")
NOW_MS = 3 * MINUTE_MS


@pytest.fixture(scope="module")
def rows(session: SparkSession) -> DataFrame:
    return session.createDataFrame([*ROWS, GAP], SCHEMA)


def test_batches_add_up_to_what_one_batch_has_also_when_they_are_written_twice(
    session: SparkSession, rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark.live.wall_ms", lambda: NOW_MS)
    whole = merged(aged((row.asDict() for row in by_minute(rows).collect()), NOW_MS))
    assert sum(row["messages"] for row in whole) == len(ROWS)
    assert sum(row["bytes"] for row in whole) == sum(range(1, 100))
    assert [row["gaps"] for row in whole if row["gaps"]] == [1]
    # The messages of minute 0 do not say when they were published.
    assert {row["minute"]: row["age_max_ms"] // MINUTE_MS for row in whole} == {0: 0, 1: 2, 2: 1}
    assert sum(row["age_ms"] for row in whole) == (40 * 2 + 20) * MINUTE_MS
    parts = (rows.filter("offset < 30"), rows.filter("offset >= 30"))
    # A folder of this machine, and an address of Hadoop.
    for folder in (tmp_path / "here", cast(Path, Remote(f"file:{tmp_path}/there"))):
        sink = Sink(session, folder, keeps=True)
        for number, part in [*enumerate(parts), (1, parts[1])]:
            sink.write(part, number)
        assert sink.minutes() == whole
        assert Sink(session, folder, keeps=True).minutes() == whole
        kept = session.read.parquet(address_of(folder / "messages"))
        assert kept.count() == len(ROWS) + 1
        if isinstance(folder, Path):
            assert (folder / "messages").stat().st_mode & 0o077 == 0, "bodies are in it"
        assert sink.behind_ms == MINUTE_MS


def test_the_spread_is_that_of_each_minute_over_all_brokers() -> None:
    listed = [
        {"minute": 1, "broker": "a", "messages": 30, "bytes": 3, "age_ms": 90, "age_max_ms": 8},
        {"minute": 1, "broker": "b", "messages": 10, "bytes": 1, "age_ms": 30, "age_max_ms": 9},
        {"minute": 2, "broker": "a", "messages": 5, "bytes": 5, "age_ms": 5, "age_max_ms": 2},
    ]
    found = spread(listed)
    ages = [(each.pop("age_ms"), each.pop("age_max_ms")) for each in found]
    assert ages == [(3, 9), (1, 2)]
    assert found == [
        {"minute": 1, "messages": 40, "bytes": 4, "imbalance": 1.5},
        {"minute": 2, "messages": 5, "bytes": 5, "imbalance": 2.0},
    ]
    assert [each["imbalance"] for each in spread(listed, ["idle", "a"])] == [2.25, 3.0]


def test_the_page_loads_itself_again_and_a_gap_fails_it(tmp_path: Path) -> None:
    minutes = [
        {
            **{"minute": 1, "broker": "<mb1>", "messages": 30, "bytes": 3, "last_ms": 1, "gaps": 1},
            **{"first_ms": 1, "age_ms": 72_000, "age_max_ms": 9_000},
        }
    ]
    page = page_of("orders", minutes, left=1_234, behind_ms=1_500, listed={"idle", "<mb1>"})
    write_page(tmp_path, page)
    text = (tmp_path / "live.html").read_text()
    assert '<meta http-equiv="refresh" content="5">' in text
    assert "1,234" in text
    assert "1.5 s" in text
    assert "2.4 s" in text
    assert "idle" in text
    assert "2.00" in text  # of two brokers one has it all
    assert "9.0 s" in text
    assert "1 gap:" in text
    assert "<mb1>" not in text
    assert page_of("orders", [], left=0, behind_ms=0).faults == ()


@pytest.mark.parametrize(("left", "now_s"), [(0, 65), (1_000, 600)])
def test_the_minute_that_has_begun_has_the_rate_of_the_part_that_was_read(
    left: int, now_s: int
) -> None:
    """Steady 2,000/s, 5 s into the second minute; with messages waiting, much later by the clock."""
    minutes = [
        {
            **{"minute": minute, "broker": "mb1", "messages": seconds * 2_000, "bytes": 1},
            **{"last_ms": minute * MINUTE_MS + seconds * 1_000, "gaps": 0},
            **{"first_ms": minute * MINUTE_MS + 1, "age_ms": 0, "age_max_ms": 0},
        }
        for minute, seconds in ((0, 60), (1, 5))
    ]
    page = page_of("orders", minutes, left=left, behind_ms=0, now_ms=now_s * 1_000)
    [table] = page.sections[0].tables
    assert [row[table.head.index("a second")] for row in table.rows] == ["2,000", "2,000"]


def test_the_first_minute_has_the_rate_of_its_part_from_the_first_message_on() -> None:
    """Steady 2,000/s from the last 15 s of a minute on; three batches, the earliest last."""
    parts = [
        {
            **{"minute": minute, "broker": "mb1", "messages": seconds * 2_000, "bytes": 1},
            **{"first_ms": minute * MINUTE_MS + from_s * 1_000, "gaps": 0, "age_ms": 0},
            **{"last_ms": minute * MINUTE_MS + 60_000, "age_max_ms": 0},
        }
        for minute, from_s, seconds in ((8, 0, 60), (7, 50, 10), (7, 45, 5))
    ]
    page = page_of("orders", merged(parts), left=0, behind_ms=0, now_ms=20 * MINUTE_MS)
    [table] = page.sections[0].tables
    assert [row[table.head.index("a second")] for row in table.rows] == ["2,000", "2,000"]


def test_a_wrong_password_is_one_line_before_a_session_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_streams: Streams) -> Any:
        raise LoginRefused("mb1:5672", "ACCESS_REFUSED")

    monkeypatch.setattr(Streams, "ends", refused)
    monkeypatch.setattr("spark.live.spark_session", None)
    assert main(["live", "--topic", "orders", "--out", str(tmp_path / "out")]) == Exit.LOGIN
    assert capsys.readouterr().err == (
        "spark: mb1:5672: ACCESS_REFUSED [messagebus explain loginrefused]\n"
    )
    assert not (tmp_path / "out").exists()


def test_what_waits_is_what_was_seen_and_not_read() -> None:
    progress = {
        "sources": [
            {
                "endOffset": '{"a":{"next":7},"b":{"next":3}}',
                "latestOffset": {"a": {"next": 10}, "b": {"next": 2}, "c": {"next": 5}},
            }
        ]
    }
    assert waiting(progress) == 3 + 5
    assert known(progress) == {"a", "b"}
    assert waiting({"sources": [{"endOffset": None}]}) == 0
    assert waiting(None) is None


def test_before_the_first_batch_nothing_is_known_of_what_waits() -> None:
    page = page_of("orders", [], left=waiting(None), behind_ms=None)
    figures = {figure.what: figure.value for figure in page.figures}
    assert (figures["waiting"], figures["behind"]) == (cell(None), cell(None))


def test_the_archive_has_the_packages_and_two_of_one_checkout_are_equal(tmp_path: Path) -> None:
    one, two = tmp_path / "one.zip", tmp_path / "two.zip"
    assert pack(one) == pack(two) == one.stat().st_size
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].removesuffix(".py") for name in names} == {*PACKAGES}
    assert "spark/source.py" in names
    assert "messagebus/recording/events.py" in names
    assert not [name for name in names if name.endswith((".pyc", ".so"))]
    assert not [name for name in names if name.startswith(LEFT_OUT)]


class Query:
    """A query that ends with a fault, or in order."""

    lastProgress = None

    def __init__(self, fault: str) -> None:
        self._fault, self.is_stopped = fault, False

    def awaitTermination(self, _timeout_s: float) -> bool:
        if self._fault:
            raise PySparkException(self._fault)
        return True

    def stop(self) -> None:
        self.is_stopped = True


class Waits(Event):
    """An event that is never set. had: the waits for it, which end at once."""

    def __init__(self) -> None:
        super().__init__()
        self.had: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.had.append(timeout or 0)
        return False


@pytest.mark.parametrize(
    ("faults", "started"),
    [
        (["worker failed to connect back", "no executor", ""], 3),
        (["messagebus.errors.ReplayGap: mb1:5672: messages were dropped"], 1),
        (["worker failed to connect back"] * (AGAIN_MAX + 1), AGAIN_MAX + 1),
    ],
)
def test_a_query_that_spark_ended_is_started_again_but_not_for_ever_and_not_behind_a_gap(
    session: SparkSession, tmp_path: Path, faults: list[str], started: int
) -> None:
    sink, queries = Sink(session, tmp_path, keeps=False), iter(faults)
    begun: list[str] = []
    waits = Waits()

    def begin() -> Any:
        begun.append(next(queries))
        return Query(begun[-1])

    with contextlib.suppress(PySparkException) if faults[-1] else contextlib.nullcontext():
        follow(begin, tmp_path, "orders", sink, waits)
    assert len(begun) == started
    assert waits.had == [1, 2, 4, 8, 16][: started - 1]
    assert (tmp_path / "live.html").exists() == (not faults[-1])


def test_a_query_that_is_to_stop_is_stopped_and_not_started_again(
    session: SparkSession, tmp_path: Path
) -> None:
    sink, stopping = Sink(session, tmp_path, keeps=False), Event()
    stopping.set()
    for fault in ("", "the JVM is gone"):
        begun: list[Query] = []

        def begin(fault: str = fault, begun: list[Query] = begun) -> Any:
            begun.append(Query(fault))
            return begun[-1]

        follow(begin, tmp_path, "orders", sink, stopping)
        assert [query.is_stopped for query in begun] == [True]
