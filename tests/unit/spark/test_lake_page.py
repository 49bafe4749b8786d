"""docs/reference/lake.md: its columns are those of a lake's files, and its queries answer."""

from __future__ import annotations

import re

import duckdb
import pyarrow.parquet as pq
import pytest

from spark.jobs import audit, backlog, latency
from spark.lake.tables import DATE, RUN, SOURCE
from spark.measures import hdr
from spark.measures.latency import CONFIRM
from tests.support.documents import ROOT, blocks_of
from tests.unit.spark.conftest import Planted

PAGE = ROOT / "docs/reference/lake.md"
LAKE, NIGHT = "out/lake", "'night'"


@pytest.fixture(scope="module")
def full(planted_run: Planted) -> Planted:
    """Its lake has all tables: one of each fault, a bad line, and every job was run."""
    for job in (latency, backlog, audit):
        job.measure(planted_run.run)
    planted_run.run.fates()
    assert planted_run.run.seconds.count()
    return planted_run


def columns_of_page() -> dict[str, set[str]]:
    """Return table -> its columns, by the tables of the page under the headings of these."""
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.M)[1:]
    return {
        name: set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", section, re.M))))
        for section in sections
        for name in re.findall(r"`(\w+)`", section.partition("\n")[0])
    }


def query(block: int, full: Planted) -> str:
    text = [each.text for each in blocks_of(PAGE) if each.language == "sql"][block]
    assert LAKE in text
    assert NIGHT in text
    run = full.run
    return text.replace(LAKE, str(run.lake.root)).replace(NIGHT, f"'{run.manifest.run_id}'")


def test_the_page_has_every_column_of_every_table_of_a_lake(full: Planted) -> None:
    written: dict[str, set[str]] = {}
    for file in full.run.lake.root.glob("*/*=*/**/*.parquet"):
        name = file.relative_to(full.run.lake.root).parts[0]
        written.setdefault(name, set()).update(pq.read_schema(file).names)
    named = columns_of_page()
    assert written.keys() <= named.keys()
    assert named.keys() - written.keys() <= {"sampled"}
    assert {name: named[name] for name in written} == written
    assert not any({DATE, RUN, SOURCE} & columns for columns in named.values())


def test_the_query_of_duckdb_gives_the_percentiles_of_the_pages(full: Planted) -> None:
    found = duckdb.execute(query(0, full)).fetchall()
    run = full.run
    bins = run.lake.read(
        run.session, "latency_bins", "measure string, broker string, bin int, n long"
    )
    own = hdr.percentiles(bins.filter(bins["measure"] == CONFIRM), ["broker"], [99])
    assert dict(found) == {row["broker"]: row["p99"] / 1e6 for row in own.collect()}
    assert found == sorted(found)


def test_the_query_of_spark_sql_gives_the_lost_messages(full: Planted) -> None:
    rows = full.run.session.sql(query(1, full)).collect()
    assert [row["message_id"] for row in rows] == full.truth.ids["lost"]
