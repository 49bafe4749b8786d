"""Claims on messages: who may run one, what is remembered of it, and for how long.

Decides what every store of deduplication carries out. There is one record for each subscription and
message id:

    (none) ──claim──▶ first ──done──▶ done
                      │  ▲             ▲  ▲
       release, or the │  │ claim by    │  │ done, also by a former owner
         lease ran out ▼  │ its owner   │  │
                     waiting ──claim──▶ running ──parked──▶ parked

Invariants:
- A claim is granted to one owner at a time. Its token names this one claim, so that asking again after a lost
  reply is granted again, and a release that arrives late does not touch the next claim.
- The end of a record is its time alone: nothing deletes `done` because "all copies were acked".
- A crash never counts as an end. Runs that began and never ended are counted; a message with too many of them
  is to be parked, never taken as done.
- Only its owner gives a claim back or extends it. Everybody may say `done`: the handler has ended well.

Times are whole milliseconds of one clock, the store's.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

KEY_BYTES = 16
TOKEN_BYTES = 8
# Counts of runs that never ended stay below this: two bytes in a store.
UNENDED_LIMIT = 10_000

# States of a record. FIRST is RUNNING where nothing was known of the message before.
FIRST, RUNNING, WAITING, DONE, PARKED = 1, 2, 3, 4, 5
STATE_NAMES = {
    FIRST: "running",
    RUNNING: "running",
    WAITING: "waiting",
    DONE: "done",
    PARKED: "parked",
}

# Kinds of a verdict, with `ENDED` for both done and parked.
RUN, ENDED, LATER, PARK = "run", "ended", "later", "park"

NOBODY = bytes(TOKEN_BYTES)


class Record(NamedTuple):
    """The knowledge of one message in one subscription.

    owner: token of the claim; zeros when nobody has it.
    unended: runs that began and did not end, the present one included.
    lease_ms: time at which the claim runs out; 0 when nobody has it.
    expires_ms: time at which the record is forgotten.
    """

    state: int
    owner: bytes
    unended: int
    lease_ms: int
    expires_ms: int


class Rule(NamedTuple):
    """Terms of a claim. lease_ms: its length; remember_ms: life of a record after its last change.

    unended_max: runs that may begin and never end, before the message is to be parked; from 1.
    """

    lease_ms: int
    remember_ms: int
    unended_max: int


class Verdict(NamedTuple):
    """The answer to a claim.

    kind: RUN (it is yours), ENDED (ack it: it is done or parked), LATER (another has it), PARK (it is yours,
    and too many of its runs never ended: store a copy in the parking queue, say `parked`, ack it).
    ms: with LATER, until the other's lease ends, at least 1.
    unended: with RUN and PARK, runs that began and did not end; RUN counts this one.
    is_first: with RUN, nothing was known of the message. is_parked: with ENDED, it is parked.
    """

    kind: str
    ms: int = 0
    unended: int = 0
    is_first: bool = False
    is_parked: bool = False


RUN_FIRST = Verdict(RUN, 0, 1, True)
RUN_AGAIN = Verdict(RUN, 0, 1)
IS_ENDED, WAS_PARKED = Verdict(ENDED), Verdict(ENDED, is_parked=True)


class Held(NamedTuple):
    """One claim: key of the message, and the token under which it was claimed."""

    key: bytes
    token: bytes


class Turn(NamedTuple):
    """Everything that a consumer tells and asks a store at once, carried out in the order of the fields.

    A store carries it out in one call or one transaction. A turn may be repeated as a whole when its reply
    was lost. Keys have KEY_BYTES, tokens TOKEN_BYTES. A key is in `claim` once at most.

    done: the handler ended well, or the message was dropped as its policy says. Nobody need hold it.
    parked: a copy is in the parking queue.
    release: given back, unstarted or after a run that failed.
    extend: still at work.
    claim: wanted, under `token`. The token is of this turn alone, and of its repetitions.
    """

    done: Sequence[bytes] = ()
    parked: Sequence[Held] = ()
    release: Sequence[Held] = ()
    extend: Sequence[Held] = ()
    claim: Sequence[bytes] = ()
    token: bytes = NOBODY


class Answer(NamedTuple):
    """The answer of a store, in the order of the questions: verdicts of `claim`, kept of `extend`.

    kept: False when the claim ran out and another has it, or the store forgot it.
    """

    verdicts: list[Verdict]
    kept: list[bool]


def key_of(subscription: str, message_id: str) -> bytes:
    """Return the key of a message in a subscription: any text, NUL included, keeps apart from any other."""
    return keys_of(subscription)(message_id)


def keys_of(subscription: str) -> Callable[[str], bytes]:
    """Return `key_of` for the ids of one subscription."""
    name = subscription.encode("utf-8", "surrogatepass")
    begun = blake2b(b"%d\0%b\0" % (len(name), name), digest_size=KEY_BYTES)

    def key_of(message_id: str) -> bytes:
        found = begun.copy()
        found.update(message_id.encode("utf-8", "surrogatepass"))
        return found.digest()

    return key_of


def claim(record: Record | None, token: bytes, rule: Rule, now_ms: int) -> tuple[Record, Verdict]:
    """Return the record after a claim, the same object when nothing changed, and the verdict."""
    if record is None or record.expires_ms <= now_ms:
        return first(token, rule, now_ms), RUN_FIRST
    state, owner, unended, lease_ms, _expires_ms = record
    if state in (DONE, PARKED):
        return record, WAS_PARKED if state == PARKED else IS_ENDED
    if state != WAITING and owner == token:  # the reply to the same claim was lost
        made = Record(state, token, unended, now_ms + rule.lease_ms, now_ms + rule.remember_ms)
        return made, _granted(state, unended, rule)
    if state != WAITING and lease_ms > now_ms:
        return record, Verdict(LATER, lease_ms - now_ms)
    # Given back, or the lease ran out. One above the limit marks a claim that is for parking only.
    unended = min(unended, rule.unended_max) + 1
    made = Record(RUNNING, token, unended, now_ms + rule.lease_ms, now_ms + rule.remember_ms)
    return made, _granted(RUNNING, unended, rule)


def _granted(state: int, unended: int, rule: Rule) -> Verdict:
    if unended > rule.unended_max:
        return Verdict(PARK, 0, unended - 1)
    if unended == 1:
        return RUN_FIRST if state == FIRST else RUN_AGAIN
    return Verdict(RUN, 0, unended)


def first(token: bytes, rule: Rule, now_ms: int) -> Record:
    """Return the record of a message that is claimed, and that nothing was known of."""
    return Record(FIRST, token, 1, now_ms + rule.lease_ms, now_ms + rule.remember_ms)


def done(rule: Rule, now_ms: int) -> Record:
    """Return the record of a message that is done, by any owner of its claim."""
    return Record(DONE, NOBODY, 0, 0, now_ms + rule.remember_ms)


def parked(record: Record | None, token: bytes, rule: Rule, now_ms: int) -> Record:
    """Return the record of a message that was parked; unchanged when it is done or another runs it."""
    if record is not None and record.expires_ms > now_ms:
        if record.state == DONE:
            return record
        if record.state in (FIRST, RUNNING) and record.owner != token and record.lease_ms > now_ms:
            return record
    return Record(PARKED, NOBODY, 0, 0, now_ms + rule.remember_ms)


def release(record: Record | None, token: bytes, rule: Rule, now_ms: int) -> Record | None:
    """Return the record of a claim that was given back; unchanged when the claim is another's.

    The run has ended or never began: it counts no longer.
    """
    if not _is_held(record, token, now_ms):
        return record
    assert record is not None
    return Record(WAITING, NOBODY, record.unended - 1, 0, now_ms + rule.remember_ms)


def extend(record: Record | None, token: bytes, rule: Rule, now_ms: int) -> Record | None:
    """Return the record of a claim with a new lease; unchanged when the claim is another's."""
    if not _is_held(record, token, now_ms):
        return record
    assert record is not None
    return record._replace(lease_ms=now_ms + rule.lease_ms, expires_ms=now_ms + rule.remember_ms)


def _is_held(record: Record | None, token: bytes, now_ms: int) -> bool:
    """Return whether a claim is still this token's; one that ran out is, until another takes it."""
    return (
        record is not None
        and record.expires_ms > now_ms
        and record.state in (FIRST, RUNNING)
        and record.owner == token
    )


def apply(records: MutableMapping[bytes, Record], turn: Turn, rule: Rule, now_ms: int) -> Answer:
    """Carry out a turn on records by key: the meaning of a turn for every store."""
    # Most are done, or new: all of a turn share one record.
    records.update(dict.fromkeys(turn.done, done(rule, now_ms)))
    for key, token in turn.parked:
        records[key] = parked(records.get(key), token, rule, now_ms)
    for key, token in turn.release:
        _put(records, key, release(records.get(key), token, rule, now_ms))
    kept = []
    for key, token in turn.extend:
        record = records.get(key)
        kept.append(_is_held(record, token, now_ms))
        _put(records, key, extend(record, token, rule, now_ms))
    new = first(turn.token, rule, now_ms)
    verdicts = []
    for key in turn.claim:
        record = records.get(key)
        if record is None:
            records[key], verdict = new, RUN_FIRST
        else:
            records[key], verdict = claim(record, turn.token, rule, now_ms)
        verdicts.append(verdict)
    return Answer(verdicts, kept)


def _put(records: MutableMapping[bytes, Record], key: bytes, record: Record | None) -> None:
    if record is not None:
        records[key] = record
