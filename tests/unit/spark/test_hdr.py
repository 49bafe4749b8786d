"""Against the reference implementation, fed the same values one by one."""

from __future__ import annotations

import random

from hdrh.histogram import HdrHistogram
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark import hdr

TOP = 2**61
WANTED = (0, 50, 90, 99, 99.9, 100)


def edges() -> list[int]:
    chance = random.Random(1)
    powers = {max(0, (1 << bit) + off) for bit in range(60) for off in (-2, -1, 0, 1, 2)}
    return sorted(powers | {chance.randrange(1 << chance.randrange(1, 60)) for _ in range(2000)})


def histogram(values: list[int]) -> HdrHistogram:
    made = HdrHistogram(1, TOP, 3)
    for value in values:
        assert made.record_value(value)
    return made


def test_index_and_highest_are_the_histograms_at_every_edge(session: SparkSession) -> None:
    reference = HdrHistogram(1, TOP, 3)
    rows = session.createDataFrame(
        [
            (v, reference._counts_index_for(v), reference.get_highest_equivalent_value(v))
            for v in edges()
        ],
        "v long, bin int, top long",
    )
    index = hdr.index(rows.v)
    assertDataFrameEqual(
        rows.select("v", index.alias("bin"), hdr.highest(index).alias("top")), rows
    )


def test_percentiles_are_the_histograms_in_every_group(session: SparkSession) -> None:
    groups = {"all": edges(), "one": [7], "twice": [5, 5], "few": [1, 2, 3, 1_000_000]}
    rows = session.createDataFrame(
        [(group, value) for group, values in groups.items() for value in values], "g string, v long"
    )
    found = hdr.percentiles(hdr.bins(rows, ["g"], "v"), ["g"], WANTED).collect()
    assert {row.g: [row[hdr.name(each)] for each in WANTED] for row in found} == {
        group: [histogram(values).get_value_at_percentile(each) for each in WANTED]
        for group, values in groups.items()
    }


def test_bins_add_up_over_a_dimension_that_is_dropped(session: SparkSession) -> None:
    values = edges()
    rows = session.createDataFrame([(n % 5, v) for n, v in enumerate(values)], "d int, v long")
    whole = hdr.percentiles(hdr.bins(rows, ["d"], "v"), [], WANTED).first()
    assert whole is not None
    expected = [histogram(values).get_value_at_percentile(each) for each in WANTED]
    assert [whole[hdr.name(each)] for each in WANTED] == expected


def test_negative_values_have_no_bin(session: SparkSession) -> None:
    rows = session.createDataFrame([(-1,), (0,), (3,)], "v long")
    assert {(row.bin, row.n) for row in hdr.bins(rows, [], "v").collect()} == {(0, 1), (3, 1)}
