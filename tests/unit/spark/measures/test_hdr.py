"""Histograms against the reference implementation, fed the same values one by one."""

from __future__ import annotations

import random
from collections.abc import Callable

from hdrh.histogram import HdrHistogram
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.measures import hdr

TOP = 2**62
WANTED = (0, 50, 90, 99, 99.9, 100)
MANY = (0, 1, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999, 100)
DISTRIBUTIONS = 20


def edges() -> list[int]:
    chance = random.Random(1)
    powers = {max(0, (1 << bit) + off) for bit in range(62) for off in (-2, -1, 0, 1, 2)} | {TOP}
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


def test_negative_values_are_ranked_below_all_others(session: SparkSession) -> None:
    rows = session.createDataFrame([(-1,), (-7_000,), (0,), (3,)], "v long")
    bins = hdr.bins(rows, [], "v")
    assert {(row.bin, row.n) for row in bins.collect()} == {(hdr.BELOW, 2), (0, 1), (3, 1)}
    row = hdr.percentiles(bins, [], (0, 50, 75, 100)).first()
    assert row is not None
    assert (row.total, row.p0, row.p50, row.p75, row.p100) == (4, -1, -1, 0, 3)
    assert hdr.histogram([(hdr.BELOW, 2), (3, 1)]).get_total_count() == 1


def test_a_figure_is_given_where_its_samples_and_its_clocks_bear_it() -> None:
    row = {"total": 100, "p50": -1, "p99": 900, "p99_9": 950, "p100": 1_000}
    assert [hdr.shown(row, each) for each in (50, 99, 99.9, 100)] == [None, 900, None, 1_000]
    assert [hdr.shown(row, each, 91) for each in (99, 100)] == [None, 1_000]


def drawn(seed: int) -> list[int]:
    """Draw values of a random distribution: its shape, its scale, its size, its outliers."""
    chance = random.Random(seed)
    scale = 10 ** chance.uniform(0, 10)
    shapes: list[Callable[[], float]] = [
        lambda: chance.expovariate(1 / scale),
        lambda: chance.lognormvariate(0, 2) * scale,
        lambda: chance.uniform(0, scale),
        lambda: chance.paretovariate(1.1) * scale,
        lambda: scale if chance.random() < 0.999 else scale * 1000,
    ]
    shape = shapes[seed % len(shapes)]
    return [min(TOP, int(shape())) for _ in range(chance.choice((1, 2, 99, 1000, 5000)))]


def test_percentiles_of_random_distributions_are_the_histograms(session: SparkSession) -> None:
    groups = {seed: drawn(seed) for seed in range(DISTRIBUTIONS)}
    rows = session.createDataFrame(
        [(seed, value) for seed, values in groups.items() for value in values], "g int, v long"
    )
    found = hdr.percentiles(hdr.bins(rows, ["g"], "v"), ["g"], MANY).collect()
    for row in found:
        expected = histogram(groups[row.g])
        assert [row[hdr.name(each)] for each in MANY] == [
            expected.get_value_at_percentile(each) for each in MANY
        ], f"distribution {row.g}"
    assert len(found) == DISTRIBUTIONS


def test_what_is_written_down_is_what_the_library_writes(session: SparkSession) -> None:
    values = [value for value in edges() if value < hdr.TOP_NS]
    reference = HdrHistogram(1, hdr.TOP_NS, hdr.DIGITS)
    for value in values:
        reference.record_value(value)
    rows = session.createDataFrame([(value,) for value in values], "v long")
    found = hdr.histogram((row.bin, row.n) for row in hdr.bins(rows, [], "v").collect())
    assert found.encode() == reference.encode()


def test_a_percentile_is_shown_as_far_as_the_count_supports_it() -> None:
    assert hdr.supported(99, 100)
    assert not hdr.supported(99.9, 100)
    assert hdr.supported(100, 1)
