"""core.claims: one owner at a time, no crash taken for an end, nothing forgotten before its time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core import claims
from messagebus.core.claims import (
    DONE,
    ENDED,
    FIRST,
    KEY_BYTES,
    LATER,
    NOBODY,
    PARK,
    PARKED,
    RUN,
    RUNNING,
    WAITING,
    Held,
    Record,
    Rule,
    Turn,
    Verdict,
    apply,
    key_of,
    keys_of,
)

RULE = Rule(lease_ms=100, remember_ms=1_000, unended_max=3)
KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES
MINE, YOURS = b"mine....", b"yours..."
NOW = 5_000


def claim(
    record: Record | None, token: bytes = MINE, now_ms: int = NOW
) -> tuple[Record | None, Verdict]:
    return claims.claim(record, token, RULE, now_ms)


def running(token: bytes = YOURS, unended: int = 1, now_ms: int = NOW) -> Record:
    return Record(RUNNING, token, unended, now_ms + RULE.lease_ms, now_ms + RULE.remember_ms)


def test_a_message_that_nothing_is_known_of_is_run_for_the_first_time() -> None:
    record, verdict = claim(None)
    assert record == Record(FIRST, MINE, 1, NOW + 100, NOW + 1_000)
    assert verdict == Verdict(RUN, 0, 1, True)


@pytest.mark.parametrize("state", [FIRST, RUNNING, WAITING, DONE, PARKED])
def test_a_record_is_forgotten_when_its_time_is_over_and_not_before(state: int) -> None:
    record = Record(state, YOURS, 2, NOW + 1, NOW + 1)
    assert not claim(record)[1].is_first
    assert claim(record, now_ms=NOW + 1) == claim(None, now_ms=NOW + 1)


@pytest.mark.parametrize("state", [DONE, PARKED])
def test_what_is_done_or_parked_is_not_run_and_stays_as_it_is(state: int) -> None:
    record = Record(state, NOBODY, 0, 0, NOW + 1)
    assert claim(record) == (record, Verdict(ENDED, is_parked=state == PARKED))


def test_what_another_runs_is_told_with_the_rest_of_its_lease_and_stays_as_it_is() -> None:
    record = running()
    assert claim(record) == (record, Verdict(LATER, 100))
    assert claim(record, now_ms=NOW + 99) == (record, Verdict(LATER, 1))


def test_a_claim_whose_reply_was_lost_is_granted_again_and_counts_once() -> None:
    record, _verdict = claim(None)
    again, verdict = claim(record, now_ms=NOW + 10)
    assert verdict == Verdict(RUN, 0, 1, True)
    assert again == Record(FIRST, MINE, 1, NOW + 110, NOW + 1_010)
    assert claim(running(MINE, 2))[1] == Verdict(RUN, 0, 2)


def test_a_lease_that_ran_out_is_the_next_ones_and_counts_as_a_run_that_never_ended() -> None:
    record, verdict = claim(running(), now_ms=NOW + 100)
    assert record == running(MINE, 2, NOW + 100)
    assert verdict == Verdict(RUN, 0, 2)


def test_a_run_that_was_given_back_counts_no_longer_and_is_not_the_first_again() -> None:
    record = claims.release(running(MINE, 2), MINE, RULE, NOW)
    assert record == Record(WAITING, NOBODY, 1, 0, NOW + 1_000)
    assert claim(record)[1] == Verdict(RUN, 0, 2)
    first = claims.release(claim(None)[0], MINE, RULE, NOW)
    assert claim(first)[1] == Verdict(RUN, 0, 1)


def test_after_too_many_runs_that_never_ended_it_is_to_be_parked_and_is_no_end() -> None:
    record, now_ms, kinds = None, NOW, []
    for token in (MINE, YOURS, MINE, YOURS, MINE):
        record, verdict = claim(record, token, now_ms)
        kinds.append((verdict.kind, verdict.unended))
        now_ms += RULE.lease_ms
    assert kinds == [(RUN, 1), (RUN, 2), (RUN, 3), (PARK, 3), (PARK, 3)]
    assert record is not None
    assert record.state == RUNNING
    assert claim(record, now_ms=now_ms)[1] == Verdict(PARK, 0, 3)  # its reply was lost


def test_a_failed_run_is_no_crash_however_often_it_fails() -> None:
    record: Record | None = None
    for _ in range(RULE.unended_max + 2):
        record, verdict = claim(record)
        assert (verdict.kind, verdict.unended) == (RUN, 1)
        record = claims.release(record, MINE, RULE, NOW)


def test_only_its_owner_gives_a_claim_back_or_extends_it() -> None:
    record = running(YOURS)
    assert claims.release(record, MINE, RULE, NOW) is record
    assert claims.extend(record, MINE, RULE, NOW) is record
    for ended in (
        None,
        Record(DONE, NOBODY, 0, 0, NOW + 1),
        Record(WAITING, NOBODY, 1, 0, NOW + 1),
    ):
        assert claims.release(ended, MINE, RULE, NOW) is ended
        assert claims.extend(ended, NOBODY, RULE, NOW) is ended


def test_a_claim_is_extended_also_when_it_ran_out_as_long_as_nobody_else_has_it() -> None:
    record = running(MINE)
    assert claims.extend(record, MINE, RULE, NOW + 300) == running(MINE, now_ms=NOW + 300)
    forgotten = running(MINE)._replace(expires_ms=NOW)
    assert claims.extend(forgotten, MINE, RULE, NOW) is forgotten


def test_everybody_may_say_done() -> None:
    for before in ({}, {KEY: running(YOURS)}, {KEY: Record(PARKED, NOBODY, 0, 0, NOW + 1)}):
        records: dict[bytes, Record] = dict(before)
        apply(records, Turn(done=[KEY]), RULE, NOW)
        assert records == {KEY: Record(DONE, NOBODY, 0, 0, NOW + 1_000)}


def test_parked_takes_nothing_from_another_who_runs_it_and_undoes_no_done() -> None:
    made = Record(PARKED, NOBODY, 0, 0, NOW + 1_000)
    done = Record(DONE, NOBODY, 0, 0, NOW + 1)
    assert claims.parked(running(YOURS), MINE, RULE, NOW) == running(YOURS)
    assert claims.parked(done, MINE, RULE, NOW) is done
    assert claims.parked(running(MINE), MINE, RULE, NOW) == made
    assert claims.parked(running(YOURS), MINE, RULE, NOW + 100).state == PARKED
    assert claims.parked(None, MINE, RULE, NOW) == made
    assert claims.parked(done, MINE, RULE, NOW + 1).state == PARKED


def test_a_turn_is_carried_out_in_the_order_of_its_fields() -> None:
    records = {KEY: running(YOURS), OTHER: running(YOURS)}
    turn = Turn(done=[KEY], release=[Held(OTHER, YOURS)], claim=[KEY, OTHER], token=MINE)
    answer = apply(records, turn, RULE, NOW)
    assert [verdict.kind for verdict in answer.verdicts] == [ENDED, RUN]
    assert records[OTHER].owner == MINE


def test_a_turn_that_claims_what_was_given_back_counts_its_runs_before() -> None:
    records = {KEY: Record(WAITING, NOBODY, 2, 0, NOW + 1)}
    answer = apply(records, Turn(claim=[KEY], token=MINE), RULE, NOW)
    assert answer.verdicts == [Verdict(RUN, 0, 3)]
    assert records[KEY] == running(MINE, 3)


def test_the_answer_has_the_order_of_the_questions() -> None:
    keys = [bytes([number]) * KEY_BYTES for number in range(4)]
    records = {
        keys[0]: running(YOURS),
        keys[2]: Record(DONE, NOBODY, 0, 0, NOW + 51),
        keys[3]: running(MINE),
    }
    held = [Held(keys[3], MINE), Held(keys[0], MINE)]
    answer = apply(records, Turn(extend=held, claim=keys[:3], token=MINE), RULE, NOW + 50)
    assert [verdict.kind for verdict in answer.verdicts] == [LATER, RUN, ENDED]
    assert answer.kept == [True, False]
    assert records[keys[3]].lease_ms == NOW + 150


KEYS = [bytes([number]) * KEY_BYTES for number in range(3)]
keys = st.lists(st.sampled_from(KEYS), unique=True, max_size=3)
TOKENS = [b"1" * 8, b"2" * 8]
held = st.lists(st.builds(Held, st.sampled_from(KEYS), st.sampled_from(TOKENS)), max_size=3)
turns = st.builds(Turn, keys, held, held, held, keys, st.sampled_from(TOKENS))


@dataclass
class Naive:
    """The knowledge of one message, in words, without times of forgetting."""

    what: str = "unknown"
    by: bytes = b""
    until_ms: int = 0
    crashes: int = 0

    def is_of(self, token: bytes) -> bool:
        return self.what == "running" and self.by == token

    def claimed(self, token: bytes, now_ms: int) -> str:
        if self.what in ("done", "parked"):
            return ENDED
        if self.what == "running" and not self.is_of(token):
            if now_ms < self.until_ms:
                return LATER
            self.crashes += 1
        self.what, self.by, self.until_ms = "running", token, now_ms + RULE.lease_ms
        return RUN if self.crashes < RULE.unended_max else PARK


@pytest.mark.guarantee("lost-reply-costs-nothing")
@given(st.lists(st.tuples(turns, st.sampled_from([0, 50, 100]), st.booleans()), max_size=8))
def test_turns_mean_what_a_naive_table_says_also_when_they_are_repeated(
    steps: list[tuple[Turn, int, bool]],
) -> None:
    rule = RULE._replace(remember_ms=1 << 40)
    records: dict[bytes, Record] = {}
    table = {key: Naive() for key in KEYS}
    now_ms = NOW
    for turn, later_ms, is_repeated in steps:
        now_ms += later_ms
        for key in turn.done:
            table[key].what = "done"
        for key, token in turn.parked:
            naive = table[key]
            is_anothers = naive.what == "running" and naive.by != token and now_ms < naive.until_ms
            if naive.what != "done" and not is_anothers:
                naive.what = "parked"
        for key, token in turn.release:
            if table[key].is_of(token):
                table[key].what = "waiting"
        kept = [table[key].is_of(token) for key, token in turn.extend]
        for key, token in turn.extend:
            if table[key].is_of(token):
                table[key].until_ms = now_ms + rule.lease_ms
        kinds = [table[key].claimed(turn.token, now_ms) for key in turn.claim]
        answer = apply(records, turn, rule, now_ms)
        assert [verdict.kind for verdict in answer.verdicts] == kinds
        assert answer.kept == kept
        # A turn gives back and parks what an earlier one has claimed: a token is of one turn.
        earlier = {token for _key, token in (*turn.parked, *turn.release)}
        if is_repeated and turn.token not in earlier:
            after = dict(records)
            again = apply(records, turn._replace(extend=()), rule, now_ms)
            assert again.verdicts == answer.verdicts
            assert records == after


def test_keys_tell_any_two_names_apart() -> None:
    names = ["", "a", "ab", "b", "\0", "a\0", "1", "11", "ü", "\udc80"]
    found = {key_of(one, other) for one in names for other in names}
    assert len(found) == len(names) ** 2
    assert {len(key) for key in found} == {KEY_BYTES}


def test_the_keys_of_a_subscription_are_kept_in_stores_and_never_change() -> None:
    assert key_of("orders/billing", "id-1").hex() == "fba15476b3e6a8ea578aa8e0725a6837"
    of = keys_of("orders/billing")
    assert [of("id-1"), of("id-2"), of("id-1")] == [
        key_of("orders/billing", name) for name in ("id-1", "id-2", "id-1")
    ]
