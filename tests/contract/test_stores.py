"""Every store of deduplication carries out turns as `core.claims` says, whoever else uses it at once.

``-k memory`` needs no server.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messagebus.core import claims
from messagebus.core.claims import KEY_BYTES, TOKEN_BYTES, Held, Record, Rule, Turn, Verdict
from messagebus.errors import ConfigError
from messagebus.stores import Dedup, Store, open_store
from messagebus.stores.memory import MemoryStore
from messagebus.stores.redis import RedisStore
from messagebus.stores.sql import SqlStore
from messagebus.stores.sqlite import SqliteStore
from messagebus.testing.store import FaultyStore
from tests.support.examples import examples

LONG_MS, SHORT_MS = 60_000, 1
RULE = Rule(LONG_MS, 2 * LONG_MS, 2)
MEMORY = MemoryStore()


def _memory(_request: pytest.FixtureRequest, _folder: Path) -> Callable[[], Store]:
    return lambda: MEMORY


def _of_a_bus(_request: pytest.FixtureRequest, _folder: Path) -> Callable[[], Store]:
    store = FaultyStore(lambda: time.time_ns() // 1_000_000)
    return lambda: store


def _sqlite(_request: pytest.FixtureRequest, folder: Path) -> Callable[[], Store]:
    return lambda: open_store(f"sqlite:///{folder / 'claims.db'}")


def _redis(request: pytest.FixtureRequest, _folder: Path) -> Callable[[], Store]:
    url = request.getfixturevalue("redis_server").url
    return lambda: RedisStore(url)


def _sql(fixture: str) -> Callable[[pytest.FixtureRequest, Path], Callable[[], Store]]:
    def of(request: pytest.FixtureRequest, folder: Path) -> Callable[[], Store]:
        server = fixture and request.getfixturevalue(fixture)
        url = server.url if server else f"sqlite:///{folder / 'app.db'}"

        async def create() -> None:
            store = SqlStore(url)
            await store.create()
            await store.close()

        asyncio.run(create())
        return lambda: SqlStore(url)

    return of


# Name -> a function that returns a function, each call of which opens the same records anew.
STORES = {
    "memory": _memory,
    "of-a-bus": _of_a_bus,
    "sqlite": _sqlite,
    "redis": _redis,
    "sql-sqlite": _sql(""),
    "postgresql": _sql("postgresql_server"),
    "mariadb": _sql("mariadb_server"),
}


@dataclass(frozen=True)
class Opened:
    """A store, the loop that it is used on, and another one of the same records."""

    runner: asyncio.Runner
    open_again: Callable[[], Store]
    store: Store

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def turn(self, turn: Turn, rule: Rule = RULE) -> Any:
        return self.run(self.store.turn(turn, rule))

    def claim(self, key: bytes, letter: str, rule: Rule = RULE) -> Verdict:
        verdict: Verdict = self.turn(Turn(claim=[key], token=token(letter)), rule).verdicts[0]
        return verdict


@pytest.fixture(scope="module", params=STORES)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    open_again = STORES[request.param](request, tmp_path_factory.mktemp("store"))
    with asyncio.Runner() as runner:
        store = open_again()
        yield Opened(runner, open_again, store)
        runner.run(store.close())


def token(letter: str) -> bytes:
    return letter.encode() * TOKEN_BYTES


def new_keys(count: int) -> list[bytes]:
    return [os.urandom(KEY_BYTES) for _ in range(count)]


def short_time_passes() -> None:
    """Let a lease or a memory of SHORT_MS end: the store's own clock decides."""
    time.sleep(4 * SHORT_MS / 1000)


# As the oracle says.
TOKENS = st.sampled_from("abc")
PLACES = st.integers(0, 2)
HELD = st.lists(st.tuples(PLACES, TOKENS), max_size=2)
RULES = st.builds(
    Rule,
    st.sampled_from([LONG_MS, LONG_MS, SHORT_MS]),
    st.sampled_from([2 * LONG_MS, 2 * LONG_MS, 2 * LONG_MS, SHORT_MS]),
    st.integers(1, 2),
)
STEPS = st.lists(
    st.tuples(
        *(st.lists(PLACES, max_size=1), HELD, HELD, HELD),
        *(st.lists(PLACES, max_size=3, unique=True), TOKENS, RULES),
    ),
    max_size=12,
)


@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(STEPS)
def test_turns_mean_what_the_rules_say(opened: Opened, steps: list[Any]) -> None:
    keys = new_keys(3)
    records: dict[bytes, Record] = {}
    now_ms = 0
    for done, parked, release, extend, claim, letter, rule in steps:

        def held(pairs: list[tuple[int, str]]) -> list[Held]:
            return [Held(keys[place], token(letter)) for place, letter in pairs]

        turn = Turn(
            *([keys[place] for place in done], held(parked), held(release), held(extend)),
            *([keys[place] for place in claim], token(letter)),
        )
        wanted = claims.apply(records, turn, rule, now_ms)
        got = opened.turn(turn, rule)
        assert got.kept == wanted.kept
        assert [_without_ms(each) for each in got.verdicts] == [
            _without_ms(each) for each in wanted.verdicts
        ]
        assert all(0 < each.ms <= LONG_MS for each in got.verdicts if each.kind == claims.LATER)
        now_ms += 10 * SHORT_MS
        if SHORT_MS in rule[:2]:
            short_time_passes()
    shown = opened.run(opened.store.show(keys))
    live = [records.get(key) for key in keys]
    assert [each and each[:3] for each in shown] == [
        each[:3] if each and each.expires_ms > now_ms else None for each in live
    ]


def _without_ms(verdict: Verdict) -> Verdict:
    return verdict._replace(ms=0)


# At once.
def test_of_many_that_want_a_message_at_once_one_gets_it(opened: Opened) -> None:
    others = [opened.open_again() for _ in range(3)]
    keys = new_keys(20)

    async def all_at_once() -> list[Any]:
        stores = [opened.store, *others] * 3
        turns = [
            store.turn(Turn(claim=keys, token=number.to_bytes(TOKEN_BYTES)), RULE)
            for number, store in enumerate(stores)
        ]
        answers = await asyncio.gather(*turns)
        for store in others:
            await store.close()
        return answers

    answers = opened.run(all_at_once())
    for place in range(len(keys)):
        kinds = sorted(answer.verdicts[place].kind for answer in answers)
        assert kinds == sorted([claims.RUN] + [claims.LATER] * (len(answers) - 1))


def test_a_large_turn_is_answered_in_its_order(opened: Opened) -> None:
    keys = new_keys(2_000)
    opened.turn(Turn(done=keys[::2]))
    kinds = [each.kind for each in opened.turn(Turn(claim=keys, token=token("a"))).verdicts]
    assert kinds == [claims.ENDED, claims.RUN] * 1_000
    held = [Held(key, token("a")) for key in keys]
    assert opened.turn(Turn(extend=held)).kept == [False, True] * 1_000


def test_ends_come_before_claims_in_a_turn(opened: Opened) -> None:
    first, second = new_keys(2)
    opened.turn(Turn(claim=[first, second], token=token("a")))
    turn = Turn(
        done=[first],
        release=[Held(second, token("a"))],
        claim=[first, second],
        token=token("b"),
    )
    assert [each.kind for each in opened.turn(turn).verdicts] == [claims.ENDED, claims.RUN]
    assert [each.kind for each in opened.turn(turn).verdicts] == [claims.ENDED, claims.RUN]


def test_a_turn_that_was_given_up_leaves_the_store_usable(opened: Opened) -> None:
    keys = new_keys(100)

    async def give_up() -> Any:
        turn = Turn(claim=keys, token=token("a"))
        task = asyncio.ensure_future(opened.store.turn(turn, RULE))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await opened.store.turn(turn, RULE)

    assert {each.kind for each in opened.run(give_up()).verdicts} == {claims.RUN}


def test_two_loops_may_use_one_store(opened: Opened) -> None:
    [key] = new_keys(1)
    assert opened.claim(key, "a").kind == claims.RUN

    async def elsewhere() -> Any:
        answer = await opened.store.turn(Turn(claim=[key], token=token("b")), RULE)
        if not isinstance(opened.store, MemoryStore):
            await opened.store.close()
        return answer

    assert asyncio.run(elsewhere()).verdicts[0].kind == claims.LATER
    assert opened.claim(key, "a").kind == claims.RUN, "the first loop goes on"


# Of one message.
def test_a_message_is_known_until_its_time_is_over(opened: Opened) -> None:
    [key] = new_keys(1)
    opened.turn(Turn(done=[key]), RULE._replace(remember_ms=SHORT_MS))
    short_time_passes()
    assert opened.run(opened.store.show([key])) == [None]
    assert opened.claim(key, "a").is_first


def test_a_message_whose_runs_never_end_is_to_be_parked(opened: Opened) -> None:
    [key] = new_keys(1)
    short = RULE._replace(lease_ms=SHORT_MS)
    for letter, run in (("a", 1), ("b", 2)):
        verdict = opened.claim(key, letter, short)
        assert (verdict.kind, verdict.unended) == (claims.RUN, run)
        short_time_passes()
    assert opened.claim(key, "c") == Verdict(claims.PARK, 0, 2)
    assert opened.claim(key, "c") == Verdict(claims.PARK, 0, 2), "the reply was lost"
    opened.turn(Turn(parked=[Held(key, token("c"))]))
    assert opened.claim(key, "d") == Verdict(claims.ENDED, is_parked=True)


def test_records_are_shown_counted_and_forgotten(opened: Opened) -> None:
    before = opened.run(opened.store.count())
    ran, done, parked, waiting, unknown = keys = new_keys(5)
    opened.turn(Turn(claim=[ran, waiting], token=token("a")))
    opened.turn(
        Turn([done], [Held(parked, token("a"))], release=[Held(waiting, token("a"))]),
    )
    shown = opened.run(opened.store.show(keys))
    states = [each and claims.STATE_NAMES[each.state] for each in shown]
    assert states == ["running", "done", "parked", "waiting", None]
    now_ms = time.time() * 1000
    for each in shown[:-1]:
        assert now_ms < each.expires_ms <= now_ms + RULE.remember_ms + 1_000
    assert now_ms < shown[0].lease_ms <= now_ms + RULE.lease_ms + 1_000
    after = opened.run(opened.store.count())
    added = [each - was for each, was in zip(after, before, strict=True)]
    assert added == [1, 1, 1, 1, 0]
    assert opened.run(opened.store.forget([done, parked, unknown])) == 2
    assert opened.claim(done, "b").is_first
    assert opened.run(opened.store.forget([])) == 0


def test_records_outlive_who_wrote_them(opened: Opened) -> None:
    [key] = new_keys(1)
    opened.turn(Turn(done=[key]))
    opened.run(opened.store.close())
    assert opened.claim(key, "a").kind == claims.ENDED


def test_a_turn_without_anything_asks_whether_the_store_is_there(opened: Opened) -> None:
    assert opened.turn(Turn()) == claims.Answer([], [])


def test_the_fences_of_a_key_grow_whoever_asks(opened: Opened) -> None:
    if isinstance(opened.store, SqliteStore):
        with pytest.raises(ConfigError, match="SqliteStore has no `next_fence`"):
            Dedup(opened.store, fence=True)
        return
    key, other = new_keys(2)

    async def ask(stores: list[Any]) -> list[int]:
        asked = [each.next_fence(key) for each in stores for _ in range(5)]
        return [*await asyncio.gather(*asked), await stores[0].next_fence(other)]

    again = opened.open_again()
    numbers = opened.run(ask([opened.store, again]))
    assert (sorted(numbers[:-1]), numbers[-1]) == (list(range(1, 11)), 1)
    assert opened.run(ask([again]))[:-1] == list(range(11, 16))
    opened.run(again.close())
