from __future__ import annotations

from bench.figures.measure.audit import agree


def test_two_audits_agree_to_the_row_or_it_is_said() -> None:
    ours = {"verdicts": {"ok": 5, "lost": 1, "altered": 0}, "late": [{"message_id": "b"}]}
    assert agree(ours, {"verdicts": {"ok": 5, "lost": 1}, "late": ["b"]}) == []
    assert len(agree(ours, {"verdicts": {"ok": 6}, "late": []})) == 2
