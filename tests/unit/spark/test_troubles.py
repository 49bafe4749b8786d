from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from messagebus.events import DELIVERED, PUBLISHED
from spark import audit, troubles
from spark.troubles import TROUBLES
from tests.support.literal_events import OTHER_BODY, RUN, SECOND, ddl, delivery, publish


def test_each_trouble_is_counted_in_the_window_in_which_it_was_sent(session: SparkSession) -> None:
    def both(message: str, **changed: Any) -> list[dict[str, Any]]:
        return [delivery(message, each, **changed) for each in ("audit", "billing")]

    later = {"intended_ns": 25 * SECOND, "sent_ns": 25 * SECOND}
    published = [
        publish("fine"),
        publish("lost"),
        publish("altered"),
        publish("again"),
        publish("twice", attempts=2, confirmed_ns=26 * SECOND, **later),
        publish("refused", outcome="refused", confirmed_ns=None, **later),
    ]
    delivered = [
        *both("fine"),
        delivery("lost", "audit"),
        *both("altered", body_hash=OTHER_BODY),
        *both("again"),
        delivery("again", received_ns=4 * SECOND),
        *both("twice", received_ns=27 * SECOND),
        delivery("twice", received_ns=28 * SECOND),
        delivery("orphan", received_ns=29 * SECOND),
    ]
    fates = audit.fates(
        session.createDataFrame(published, ddl(PUBLISHED)),
        session.createDataFrame(delivered, ddl(DELIVERED)),
        RUN,
    )
    found = {row["at"]: row for row in troubles.over_time(fates, RUN.start_ns, 10).collect()}
    assert {
        at: {name: row[name] for name in TROUBLES if row[name]} for at, row in found.items()
    } == {
        0: {"lost": 1, "altered": 2, "unexplained": 1},
        20: {"explained": 1, "strange": 1, "unconfirmed": 1},
    }
