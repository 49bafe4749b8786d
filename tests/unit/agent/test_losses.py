"""agent.losses: each loss is told once, and once more when it is repaired."""

from __future__ import annotations

from messagebus.agent.losses import LOSSES_KEPT, Loss, Losses


def losses() -> tuple[Losses, list[int]]:
    """And how often they were reported."""
    reports: list[int] = []
    return Losses("mb1:5672", lambda: reports.append(1)), reports


def test_what_is_missing_is_told_once_until_it_is_there_again() -> None:
    made, reports = losses()
    for how in ("event", "audit"):
        made.noticed("orders/a", "queue", "q", how=how, now_ms=5)
    assert (made.missing, made.total, len(reports)) == (1, 1, 1)
    made.repaired(7)
    made.repaired(8)
    assert (made.missing, len(reports)) == (0, 2)
    (loss,) = made.kept
    assert (loss.how, loss.noticed_at_ms, loss.repaired_at_ms) == ("event", 5, 7)
    made.noticed("orders/a", "queue", "q", how="event", now_ms=9)
    assert (made.missing, made.total, len(made.kept)) == (1, 2, 2)


def test_every_change_has_another_mark() -> None:
    made, _reports = losses()
    marks = [made.mark]
    made.noticed("a", "queue", "q", how="event", now_ms=1)
    marks.append(made.mark)
    made.repaired(2)
    marks.append(made.mark)
    assert len(set(marks)) == 3


def test_a_binding_that_went_with_its_queue_is_called_a_queue() -> None:
    made, reports = losses()
    made.noticed("a", "binding", "q", how="event", now_ms=1_000)
    made.was_a_queue("q", deleted_at_ms=2_000)
    assert made.kept[0].what == "binding", "another deletion, much later"
    made.was_a_queue("q", deleted_at_ms=1_001)
    assert made.kept[0].what == "queue"
    assert len(reports) == 2


def test_few_are_kept_and_those_of_an_earlier_process_too() -> None:
    made, _reports = losses()
    made.restore([Loss(wanted="a", what="queue", name="q", how="start", noticed_at_ms=1)])
    assert made.missing == 1
    for number in range(2 * LOSSES_KEPT):
        made.noticed("a", "queue", f"q{number}", how="event", now_ms=2)
    assert len(made.kept) == LOSSES_KEPT
