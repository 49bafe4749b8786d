import io
from dataclasses import replace

from rich.console import Console

from bench.audit import Audit, PublisherAudit, SubscriptionAudit
from bench.audit_tables import print_audit, verdict
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


def printed(result: Audit) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_audit(result, MANIFEST, console)
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
