from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.audit import Audit, BrokerAudit, PublisherAudit, SubscriptionAudit
from bench.audit_report import disagreements, print_audit, read_report, verdict
from bench.errors import BenchError
from bench.harness.outcomes import Gap
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import Incident, Manifest

S = 1_000_000_000
MANIFEST = Manifest(
    run_id="r",
    topics={"t": ("billing",)},
    brokers=(),
    start_ns=10 * S,
    anchor=Anchor("h", "c", 0),
    incidents=(Incident(kind="kill", broker="b1", at_ns=20 * S, done_ns=20 * S),),
)


def confirmed(count: int) -> Audit:
    result = Audit("r", True)
    result.outcomes["confirmed"] = count
    return result


def printed(result: Audit, manifest: Manifest = MANIFEST) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_audit(result, manifest, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_person_sees_counts_the_verdict_and_when_the_longest_gap_was() -> None:
    entry = SubscriptionAudit("t", "billing", expected=5, delivered=5, deliveries=6)
    gap = Gap(length_ns=S // 2, start_ns=21 * S)
    result = confirmed(5)
    result.subscriptions, result.publishers = [entry], {"p1": PublisherAudit(5, 5, 0, gap)}
    text = printed(result)
    assert "t/billing" in text
    assert "0.500 s" in text
    assert "11.0 s, kill" in text
    assert "audit holds" in text
    assert max(map(len, text.splitlines()[:-1])) <= 80


def test_a_gap_that_began_with_the_next_incident_is_not_put_on_the_one_before() -> None:
    removed = Incident(kind="remove", broker="b2", at_ns=17 * S, done_ns=18 * S)
    manifest = replace(MANIFEST, incidents=(*MANIFEST.incidents, removed))
    gap = Gap(length_ns=S // 2, start_ns=20 * S + 1)
    text = printed(Audit("r", True, publishers={"p1": PublisherAudit(5, 5, 0, gap)}), manifest)
    assert "10.0 s, kill" in text
    assert "remove" not in text
    gap = Gap(length_ns=4 * S, start_ns=19 * S)
    text = printed(Audit("r", True, publishers={"p1": PublisherAudit(5, 5, 0, gap)}), manifest)
    assert "9.0 s, kill" in text


def test_a_gap_long_after_an_incident_is_not_put_on_it() -> None:
    gap = Gap(length_ns=S // 2, start_ns=40 * S)
    text = printed(Audit("r", True, publishers={"p1": PublisherAudit(5, 5, 0, gap)}))
    assert "30.0 s" in text
    assert "kill" not in text


def test_what_is_wrong_is_in_the_verdict() -> None:
    entry = SubscriptionAudit("t", "billing", expected=5, delivered=4, lost=1)
    result = replace(confirmed(5), subscriptions=[entry])
    told = "audit does NOT hold: 1 confirmed and never delivered"
    assert str(verdict(result)) == told
    assert "did not end in order" in str(verdict(replace(result, complete=False)))


def test_what_is_allowed_is_told_beside_the_verdict() -> None:
    result = confirmed(10)
    result.outcomes |= {"unknown": 3, "refused": 2}
    assert str(verdict(result)) == "audit does NOT hold: 5 published without a confirm"
    allowed = str(verdict(replace(result, allowed=("unconfirmed",))))
    assert allowed.startswith("audit holds: 10 confirmed, ")
    assert allowed.endswith("; allowed: 5 published without a confirm")
    gap = Gap(length_ns=30 * S, start_ns=20 * S, ended=False)
    assert "30.000 s, no end" in printed(
        replace(result, publishers={"p1": PublisherAudit(5, 2, 0, gap)})
    )


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
