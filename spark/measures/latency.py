"""Latency of publishing and of delivering, as counts per HdrHistogram bin.

Measured from the *intended* time, so that a stall counts for everything that it held up, and beside
it from the time of sending, which forgives the sender every wait. End to end crosses two clocks:
negative values are counted and ranked below all others, never clipped or left out.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from messagebus.recording.manifest import Manifest
from spark.measures import hdr, throughput
from spark.measures.run import Run

CONFIRM = "confirm_from_intended"
SENT = "confirm_from_sent"
END_TO_END = "received_from_intended"
RECEIVED_SENT = "received_from_sent"
MEASURES = (CONFIRM, SENT, END_TO_END, RECEIVED_SENT)
MEASURE_NAMES = {
    CONFIRM: "publish: intended to confirmed",
    SENT: "publish: sent to confirmed",
    END_TO_END: "end to end: intended to received",
    RECEIVED_SENT: "end to end: sent to received",
}
# Measures that begin and end in one process: below zero only when its clock went back.
ONE_CLOCK = (CONFIRM, SENT)
WHOLE, BROKER, SUBSCRIPTION = "all", "broker", "subscription"
# Widest window of the stored bins. Fine windows hardly compress: a broker's second has about as many bins as
# values.
BIN_WINDOW_S = 10
# fmt: off
CURVE = (
    0, 10, 25, 50, 75, 90, 95, 97, 98, 99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.95, 99.98, 99.99, 99.999, 100,
)
# fmt: on


def samples(published: DataFrame, fates: DataFrame) -> DataFrame:
    """Return date, measure, broker, subscription ("" for publishes), at_ns (intended), value_ns, resent.

    fates: rows of `audit.fates`; the first delivery of every expected pair counts, repeats do not. resent:
    the message was sent more than once, and its earlier copy may come before the later sending.
    """
    confirmed = published.filter(F.col("outcome") == "confirmed")
    sent = confirmed.select(
        "date",
        "broker",
        F.lit("").alias("subscription"),
        F.col("intended_ns").alias("at_ns"),
        F.lit(False).alias("resent"),
        F.inline(
            F.array(
                _measured(CONFIRM, F.col("confirmed_ns") - F.col("intended_ns")),
                _measured(SENT, F.col("confirmed_ns") - F.col("sent_ns")),
            )
        ),
    )
    received = fates.filter(F.col("expected") & (F.col("deliveries") > 0)).select(
        "date",
        F.col("first_broker").alias("broker"),
        F.concat_ws("/", "topic", "subscription").alias("subscription"),
        F.col("intended_ns").alias("at_ns"),
        (F.col("attempts") != 1).alias("resent"),
        F.inline(
            F.array(
                _measured(END_TO_END, F.col("first_ns") - F.col("intended_ns")),
                _measured(RECEIVED_SENT, F.col("first_ns") - F.col("sent_ns")),
            )
        ),
    )
    columns = ("date", "measure", "broker", "subscription", "at_ns", "value_ns", "resent")
    return sent.select(*columns).unionByName(received.select(*columns))


def bins(run: Run, samples: DataFrame, width_s: int) -> DataFrame:
    """Return the bins of samples by date, measure, broker, subscription and window, as kept in the lake."""
    window = throughput.window("at_ns", run.manifest.start_ns, width_s)
    dims = ["date", "measure", "broker", "subscription", "window"]
    return run.keep(
        "latency_bins", hdr.bins(samples.withColumn("window", window), dims, "value_ns")
    )


def scoped(bins: DataFrame) -> DataFrame:
    """Return measure, scope, name, bin, n: each bin under the whole run, its broker and its subscription."""
    scopes = F.array(
        F.struct(F.lit(WHOLE).alias("scope"), F.lit("").alias("name")),
        F.struct(F.lit(BROKER).alias("scope"), F.col("broker").alias("name")),
        F.struct(F.lit(SUBSCRIPTION).alias("scope"), F.col("subscription").alias("name")),
    )
    each = bins.select("measure", "bin", "n", F.inline(scopes))
    named = each.filter((F.col("scope") == WHOLE) | (F.col("name") != ""))
    return named.groupBy("measure", "scope", "name", "bin").agg(F.sum("n").alias("n"))


def below(measure: str) -> dict[str, Column]:
    """Return aggregates over `samples`: below, backwards, error_ns.

    below: samples below zero. backwards: those of them that were not resent. error_ns: the largest of these;
    clocks differ by that, or more.
    """
    own = (F.col("measure") == measure) & (F.col("value_ns") < 0)
    once = own & ~F.col("resent")
    error = F.coalesce(F.max(F.when(once, -F.col("value_ns"))), F.lit(0).cast("long"))
    return {"below": F.count_if(own), "backwards": F.count_if(once), "error_ns": error}


def clock_counts(run: Run, samples: DataFrame) -> dict[str, dict[str, int]]:
    """Return measure -> counts of `below`, and hidden: 0.

    Across clocks error_ns is at least the doubt about these.
    """
    asked = {
        f"{measure} {name}": value for measure in MEASURES for name, value in below(measure).items()
    }
    row = samples.agg(*[value.alias(name) for name, value in asked.items()]).collect()[0]
    found: dict[str, dict[str, int]] = {measure: {"hidden": 0} for measure in MEASURES}
    for name in asked:
        measure, _, count = name.partition(" ")
        found[measure][count] = row[name]
    for measure in set(MEASURES) - set(ONE_CLOCK):
        error_ns = max(found[measure]["error_ns"], run.ingested.clock_doubt_ns)
        found[measure]["error_ns"] = error_ns
    return found


def names(*manifests: Manifest) -> dict[str, str]:
    """Return measure -> in words. "intended" only where it was recorded."""
    if all(manifest.is_corrected for manifest in manifests):
        return MEASURE_NAMES
    return {
        measure: text.replace("intended", "handed over") for measure, text in MEASURE_NAMES.items()
    }


def _measured(measure: str, value: Column) -> Column:
    return F.struct(F.lit(measure).alias("measure"), value.alias("value_ns"))
