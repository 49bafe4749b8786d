"""A store in Redis or Valkey, for many hosts.

A record is a string under ``mb:`` and its key: for done and parked a digit, which all share in its memory;
else state, unended (2 bytes), owner (8) and end of the lease (6). Redis forgets it by its own expiry. One
script carries out a turn, with the time of the server. A failover may forget the last writes, because
replication is asynchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import exceptions as faults
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff

from messagebus.core.claims import (
    DONE,
    FIRST,
    IS_ENDED,
    LATER,
    NOBODY,
    PARK,
    PARKED,
    RUN,
    RUN_FIRST,
    STATE_NAMES,
    WAITING,
    WAS_PARKED,
    Answer,
    Record,
    Rule,
    Turn,
    Verdict,
)
from messagebus.errors import REASON_CHARS_MAX, ConfigError, MessageBusError, StoreAway, reason_of
from messagebus.secret import Secret, split_address
from messagebus.stores import StoreCounts

__all__ = ["RedisStore"]

T = TypeVar("T")

PREFIX, FENCE_PREFIX = b"mb:", b"mbfence:"
# For connecting, and for each reply. A consumer's store_timeout_s may end a wait before.
TIMEOUT_S = 5.0
REPLICAS_TIMEOUT_MS = 50
SENTINEL_TIMEOUT_S = 1.0
CLUSTER_FAULTS = (faults.ClusterDownError, faults.AskError, faults.ClusterCrossSlotError)
PORT, SENTINEL_PORT = 6379, 26379
RUNNING_LAYOUT = struct.Struct(">BH8s6s")
WAITING_LAYOUT = struct.Struct(">BH")

# As `core.claims.apply`, and in its order. Keys: done, parked, release, extend, claim. The reply: a letter
# for each claim, a digit for each extension, and a number for each claim whose letter has one.
SCRIPT = """
if redis.replicate_commands then redis.replicate_commands() end
local call, sub, pack, unpack = redis.call, string.sub, struct.pack, struct.unpack
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local done, parked, release, extend = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local lease, remember, most, token = ARGV[5] + 0, ARGV[6], ARGV[7] + 0, ARGV[8]
local until_ms, k, a = now + lease, 0, 8
for _ = 1, done do
  k = k + 1
  call('SET', KEYS[k], '4', 'PX', remember)
end
for _ = 1, parked do
  k, a = k + 1, a + 1
  local v = call('GET', KEYS[k])
  local s = v and v:byte(1)
  if s ~= 52 then
    local other = s and s < 3 and sub(v, 4, 11) ~= ARGV[a] and unpack('>I6', v, 12) > now
    if not other then call('SET', KEYS[k], '5', 'PX', remember) end
  end
end
for _ = 1, release do
  k, a = k + 1, a + 1
  local v = call('GET', KEYS[k])
  if v and v:byte(1) < 3 and sub(v, 4, 11) == ARGV[a] then
    call('SET', KEYS[k], pack('>BH', 3, unpack('>H', v, 2) - 1), 'PX', remember)
  end
end
local kept = {}
for i = 1, extend do
  k, a = k + 1, a + 1
  local v = call('GET', KEYS[k])
  if v and v:byte(1) < 3 and sub(v, 4, 11) == ARGV[a] then
    call('SET', KEYS[k], sub(v, 1, 11) .. pack('>I6', until_ms), 'PX', remember)
    kept[i] = '1'
  else
    kept[i] = '0'
  end
end
local reply, letters, fresh = {'', table.concat(kept)}, {}, pack('>BHc8I6', 1, 1, token, until_ms)
for i = 1, #KEYS - k do
  local key = KEYS[k + i]
  local v = call('GET', key)
  if not v then
    call('SET', key, fresh, 'PX', remember)
    letters[i] = 'f'
  else
    local s = v:byte(1)
    if s > 3 then
      letters[i] = s == 53 and 'k' or 'e'
    else
      local n, mine = unpack('>H', v, 2), s < 3 and sub(v, 4, 11) == token
      local ends = s < 3 and unpack('>I6', v, 12) or 0
      if not mine and ends > now then
        letters[i] = 'l'
        reply[#reply + 1] = ends - now
      else
        if not mine then
          s, n = 2, math.min(n, most) + 1
        end
        call('SET', key, pack('>BHc8I6', s, n, token, until_ms), 'PX', remember)
        if n > most then
          letters[i] = 'p'
          reply[#reply + 1] = n - 1
        elseif s == 1 and n == 1 then
          letters[i] = 'f'
        else
          letters[i] = 'r'
          reply[#reply + 1] = n
        end
      end
    end
  end
end
reply[1] = table.concat(letters)
return reply
"""
SHA = hashlib.sha1(SCRIPT.encode()).hexdigest()
FIRST_LETTER, ENDED_LETTER, PARKED_LETTER, LATER_LETTER, PARK_LETTER = b"feklp"


class RedisStore:
    """Records in one Redis, or in the master that Sentinels name.

    url: ``redis://[user:password@]host[:port][/db]``, ``rediss://…`` with TLS, or
        ``redis+sentinel://[user:password@]host[:port][,host…]/service[/db]``; ``?wait_replicas=``. With
        ``rediss+sentinel://`` Sentinels have TLS too; they are asked without a login.
    wait_replicas: replicas that must have what is done, within 50 ms; fewer are counted in `unreplicated`.
    Redis Cluster is refused: a turn is one script over many keys.
    """

    def __init__(self, url: str | Secret, *, wait_replicas: int = 0) -> None:
        text = url.reveal() if isinstance(url, Secret) else url
        given, make, self._shown = _parse(text)
        replicas = given.pop("wait_replicas", str(wait_replicas))
        if given:
            raise ConfigError(f"{self._shown}: unknown: {', '.join(sorted(given))}")
        if len(str(replicas)) > 3 or not str(replicas).isdecimal() or int(replicas) > 100:
            raise ConfigError(f"{self._shown}: wait_replicas {replicas!r}: 0 to 100")
        self._make: Callable[[], Redis] = make
        self._wait_replicas = int(replicas)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Redis] = (
            weakref.WeakKeyDictionary()
        )
        self.unreplicated = 0
        """Turns whose ends too few replicas had in time."""

    @classmethod
    def from_url(cls, url: str) -> Self:
        return cls(url)

    @property
    def _client(self) -> Redis:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._make()
        return client

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        held = (*turn.parked, *turn.release, *turn.extend)
        keys = [PREFIX + key for key in turn.done]
        keys += [PREFIX + key for key, _token in held]
        keys += [PREFIX + key for key in turn.claim]
        arguments = (
            *(len(turn.done), len(turn.parked), len(turn.release), len(turn.extend)),
            *(rule.lease_ms, rule.remember_ms, rule.unended_max, turn.token),
            *(token for _key, token in held),
        )
        waits = self._wait_replicas and (turn.done or turn.parked)
        return _answer(turn, await self._call(lambda: self._evaluate(keys, arguments, bool(waits))))

    async def _evaluate(
        self, keys: Sequence[bytes], arguments: Sequence[Any], waits: bool
    ) -> list[Any]:
        client: Any = self._client
        try:
            if not waits:
                reply = await client.execute_command("EVALSHA", SHA, len(keys), *keys, *arguments)
            else:
                pipe = client.pipeline(transaction=False)
                pipe.execute_command("EVALSHA", SHA, len(keys), *keys, *arguments)
                pipe.execute_command("WAIT", self._wait_replicas, REPLICAS_TIMEOUT_MS)
                reply, replicas = await pipe.execute()
                self.unreplicated += replicas < self._wait_replicas
        except faults.NoScriptError:  # it was started anew
            await client.execute_command("SCRIPT LOAD", SCRIPT)
            return await self._evaluate(keys, arguments, waits)
        found: list[Any] = reply
        return found

    async def next_fence(self, key: bytes) -> int:
        number: int = await self._call(lambda: self._client.incr(FENCE_PREFIX + key))
        return number

    async def forget(self, keys: Sequence[bytes]) -> int:
        if not keys:
            return 0
        count: int = await self._call(lambda: self._client.delete(*(PREFIX + key for key in keys)))
        return count

    async def show(self, keys: Sequence[bytes]) -> list[Record | None]:
        async def read() -> list[Any]:
            pipe = self._client.pipeline(transaction=True)
            pipe.time()
            for key in keys:
                pipe.get(PREFIX + key)
                pipe.pttl(PREFIX + key)
            return list(await pipe.execute())

        (seconds, micros), *found = await self._call(read)
        now_ms = seconds * 1000 + micros // 1000
        return [
            None if value is None else _record(value, now_ms + left_ms)
            for value, left_ms in zip(found[::2], found[1::2], strict=True)
        ]

    async def count(self) -> StoreCounts:
        async def count() -> StoreCounts:
            counts = dict.fromkeys(STATE_NAMES.values(), 0)
            client: Any = self._client
            cursor = 0
            while True:
                cursor, keys = await client.scan(cursor, match=PREFIX + b"*", count=1_000)
                for value in await client.mget(keys) if keys else ():
                    if value:
                        counts[STATE_NAMES[value[0] & 15]] += 1
                if not cursor:
                    return StoreCounts(**counts)

        return await self._call(count)

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            pool: Any = client.connection_pool
            manager = getattr(pool, "sentinel_manager", None)
            await client.aclose()
            for sentinel in manager.sentinels if manager is not None else ():
                await sentinel.aclose()

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call Redis, and say its faults in one line.

        After any fault the next call connects anew: a master that has become a replica keeps its connections
        and refuses every write on them, while its name leads to the new master.
        """
        try:
            return await work()
        except (faults.RedisError, OSError, TimeoutError) as fault:
            await self._disconnect()
            told = self._translated(fault)
            raise told from (None if isinstance(told, ConfigError) else fault)

    async def _disconnect(self) -> None:
        """Close the connections that no other call is using; each of those calls finds out by itself."""
        with contextlib.suppress(faults.RedisError, OSError):
            await self._client.connection_pool.disconnect(inuse_connections=False)

    def _translated(self, fault: Exception) -> MessageBusError:
        text = reason_of(fault, REASON_CHARS_MAX)
        if (
            isinstance(fault, faults.AuthenticationError | faults.NoPermissionError)
            or "NOAUTH" in text
            or "WRONGPASS" in text
        ):
            return ConfigError(f"{self._shown}: login refused: {text}")
        if isinstance(fault, CLUSTER_FAULTS):
            return ConfigError(f"{self._shown}: Redis Cluster: use one Redis or Sentinels")
        if isinstance(fault, faults.OutOfMemoryError) or "OOM " in text:
            text = "full: its maxmemory is reached"
        elif isinstance(fault, MasterNotFoundError):
            text = f"no Sentinel names a master: {text}"
        return StoreAway(f"{self._shown}: {text}")

    def __repr__(self) -> str:
        return f"RedisStore({self._shown!r})"


def _parse(url: str) -> tuple[dict[str, str], Callable[[], Redis], str]:
    """Return options, a maker of clients, and the address without its login. Raises ConfigError."""
    parts = split_address(url)
    try:
        scheme = parts.scheme.lower()
        login, _at, hosts = parts.netloc.rpartition("@")
        addresses = [_address(each, scheme) for each in hosts.split(",")]
    except ValueError:
        raise ConfigError("redis: an address wanted, as redis://host:6379/0") from None
    user, _colon, password = login.partition(":")
    path = [unquote(each) for each in parts.path.split("/")[1:] if each]
    shown = f"{scheme}://{hosts}{parts.path}"
    is_sentinel = scheme in ("redis+sentinel", "rediss+sentinel")
    if scheme not in ("redis", "rediss") and not is_sentinel:
        raise ConfigError(f"{shown}: redis://, rediss:// or redis+sentinel://")
    service = path.pop(0) if is_sentinel and path else ""
    if is_sentinel != bool(service) or (len(addresses) > 1 and not is_sentinel):
        raise ConfigError(f"{shown}: redis+sentinel://host[,host…]/SERVICE, or redis://host")
    number = path[0] if path else "0"
    if len(path) > 1 or len(number) > 9 or not number.isdecimal():
        raise ConfigError(f"{shown}: the number of a database wanted at its end")
    options: dict[str, Any] = {
        "db": int(number),
        "username": unquote(user) or None,
        "password": unquote(password) or None,
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(
            NoBackoff(), 0
        ),  # the consumer itself asks again, and sees what it waits for
    }
    # The same for Sentinels. A certificate of another host is none, by redis-py 5's default too.
    tls = {"ssl": True, "ssl_check_hostname": True} if scheme.startswith("rediss") else {}
    options |= tls

    def make() -> Redis:
        if not is_sentinel:
            (host, port), *_none = addresses
            return Redis(host=host, port=port, **options)
        kind: Any = Sentinel
        asking = {"socket_timeout": SENTINEL_TIMEOUT_S, **tls}
        found = kind(addresses, sentinel_kwargs=asking, **options)
        master: Redis = found.master_for(service)
        return master

    return dict(parse_qsl(parts.query, keep_blank_values=True)), make, shown


def _address(text: str, scheme: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    default = SENTINEL_PORT if "sentinel" in scheme else PORT
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or default


def _answer(turn: Turn, reply: Sequence[Any]) -> Answer:
    letters, kept, *numbers = reply
    if not letters.strip(b"f"):
        return Answer([RUN_FIRST] * len(letters), [each == 49 for each in kept])
    number = iter(numbers)
    verdicts = []
    for letter in letters:
        if letter == FIRST_LETTER:
            verdicts.append(RUN_FIRST)
        elif letter == ENDED_LETTER:
            verdicts.append(IS_ENDED)
        elif letter == PARKED_LETTER:
            verdicts.append(WAS_PARKED)
        elif letter == LATER_LETTER:
            verdicts.append(Verdict(LATER, next(number)))
        elif letter == PARK_LETTER:
            verdicts.append(Verdict(PARK, 0, next(number)))
        else:
            verdicts.append(Verdict(RUN, 0, next(number)))
    return Answer(verdicts, [each == ord("1") for each in kept])


def _record(value: bytes, expires_ms: int) -> Record:
    state = value[0] & 15  # of a digit, too
    if state in (DONE, PARKED):
        return Record(state, NOBODY, 0, 0, expires_ms)
    if state == WAITING:
        return Record(state, NOBODY, WAITING_LAYOUT.unpack(value)[1], 0, expires_ms)
    assert state >= FIRST
    state, unended, owner, lease = RUNNING_LAYOUT.unpack(value)
    return Record(state, owner, unended, int.from_bytes(lease), expires_ms)
