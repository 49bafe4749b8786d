import json
from pathlib import Path
from typing import Any

import pytest

from bench.audit import Audit, BrokerAudit, PublisherAudit, SubscriptionAudit
from bench.errors import BenchError
from bench.second_audit import disagreements, read_report


def ours() -> Audit:
    entry = SubscriptionAudit("t", "s", expected=5, delivered=5, deliveries=6)
    entry.doubled["owed"] = 1
    return Audit(
        "r",
        True,
        published=5,
        outcomes={"confirmed": 5, "refused": 0, "unroutable": 0, "unknown": 0},
        subscriptions=[entry],
        brokers={"b:1": BrokerAudit(confirmed=5, deliveries=6, doubled=1)},
        publishers={"p1": PublisherAudit(published=5, confirmed=5, retried=2)},
    )


def theirs() -> dict[str, Any]:
    return {
        "published": 5,
        "confirmed": 5,
        "lines": {"bad": 0},
        "subscriptions": [
            {
                "topic": "t",
                "subscription": "s",
                "expected": 5,
                "delivered": 5,
                "deliveries": 6,
                "lost": 0,
                "altered": 0,
                "orphan_deliveries": 0,
                "unknown": 0,
                "owed": 1,
                "acked_without_proof": 0,
                "unexplained": 0,
            }
        ],
        "brokers": [{"broker": "b:1", "confirmed": 5, "deliveries": 6, "lost": 0}],
        "publishers": [{"publisher": "p1", "published": 5, "confirmed": 5, "retried": 2}],
    }


def test_audits_with_the_same_numbers_agree() -> None:
    assert disagreements(ours(), theirs()) == []


@pytest.mark.parametrize(
    ("table", "count", "said"),
    [
        ("subscriptions", "lost", "t/s lost: 0 here, 9 there"),
        ("subscriptions", "owed", "t/s doubled owed: 1 here, 9 there"),
        ("brokers", "deliveries", "b:1 deliveries: 6 here, 9 there"),
        ("publishers", "retried", "p1 retried: 2 here, 9 there"),
    ],
)
def test_every_number_that_differs_is_told(table: str, count: str, said: str) -> None:
    report = theirs()
    report[table][0][count] = 9
    assert disagreements(ours(), report) == [said]


def test_what_only_one_of_them_knows_is_told() -> None:
    report = theirs()
    report["subscriptions"].append({"topic": "t", "subscription": "other"})
    assert disagreements(ours(), report) == ["t/other: None here, there there"]
    assert len(disagreements(ours(), {})) > 10


def test_a_report_without_an_audit_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no audit by Spark"):
        read_report(tmp_path)
    (tmp_path / "audit.json").write_text(json.dumps(theirs()))
    assert read_report(tmp_path) == theirs()
