"""Settling of young queues, so that they survive a kill or a power-off, and revival of dead queues.

A quorum queue's own name lies in a table that RabbitMQ 3.10 writes to disk up to a second late, so
a kill before that loses the queue and every confirmed message in it. The coordinator of all streams has
such a name too: without it no stream of the broker ever comes back. `Settler` has the table
written and fsynced by one `erl_call` (3 ms; `rabbitmqctl eval` takes 0.5 s and there is no HTTP way),
and then the file system of the data folder. The table is an internal of Ra: it is looked up by the
name of its file. Where that fails `names_synced` is False, and the caller declares one more queue
(which flushes the names before it) and waits SLOW_S.

Sources: reference/topology.md section 3; `ei_connect` and `erl_call` manual pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("messagebus.agent")

# Two ticks of the table's auto_save (0.5 s) were 1.0 s; 1.2 s was enough in 5 of 5 runs, 4 s in 10 of 10.
SLOW_S = 4.0
CALL_TIMEOUT_S = 3.0
# A data folder on a busy disk may have much to write; the registration then answers late, not wrongly.
SYNC_TIMEOUT_S = 10.0
SYNC_NAMES = (
    b"[dets:sync(T) || T <- dets:all(), "
    b'filename:basename(dets:info(T, filename)) =:= "names.dets"].\n'
)
# RabbitMQ 3.10 may start a quorum queue before the supervisor of its dead-letter worker at boot. A
# queue that dead-letters at-least-once then dies of `noproc` twice and stays dead: it is listed, its
# declaration is answered, but it stores and delivers nothing. Seen after 1 in 5 kills.
REVIVE_QUEUES = (
    b"[case whereis(element(1, amqqueue:get_pid(Q))) of undefined -> "
    b"ra:restart_server(quorum_queues, {element(1, amqqueue:get_pid(Q)), node()}); "
    b'_ -> alive end || Q <- rabbit_amqqueue:list(<<"/">>), '
    b"amqqueue:get_type(Q) =:= rabbit_quorum_queue].\n"
)
# That supervisor itself ends for good when workers fail twice in 5 s, as they do when queues are deleted
# while theirs start; all others end with it. From then on every new queue that dead-letters at-least-once
# dies of `noproc`, and its declaration is answered 541. Those that live on, the delay steps too, dead-letter
# nothing any more, since a queue starts its worker only when it becomes leader.
REVIVE_DEAD_LETTERING = (
    b"case catch supervisor:restart_child(rabbit_sup, rabbit_fifo_dlx_sup) of {ok, _} -> "
    b"[element(1, supervisor:start_child(rabbit_fifo_dlx_sup, [amqqueue:get_name(Q)])) || "
    b'Q <- rabbit_amqqueue:list(<<"/">>), lists:member({<<"x-dead-letter-strategy">>, longstr, '
    b'<<"at-least-once">>}, amqqueue:get_arguments(Q)), N <- [element(1, amqqueue:get_pid(Q))], '
    b"whereis(N) =/= undefined, ra_leaderboard:lookup_leader(N) =:= {N, node()}]; _ -> [] end.\n"
)
# Ra's own table of leaders: a queue is in it once it has read its messages. Before that, AMQP and
# management only repeat the state at its declaration (live, a leader, no messages).
# A queue whose name was lost with a kill starts anew as a follower that nobody ever calls to an
# election: it would be listed and take nothing for ever. A queue that has read its messages is a
# follower for a moment too; the call only hurries it.
ELECT_LEADERS = (
    b"length([case ets:lookup(ra_state, N) of "
    b"[S] when element(2, S) =:= follower -> catch ra:trigger_election({N, node()}); _ -> reads end || "
    b'Q <- rabbit_amqqueue:list(<<"/">>), amqqueue:get_type(Q) =:= rabbit_quorum_queue, '
    b"N <- [element(1, amqqueue:get_pid(Q))], ra_leaderboard:lookup_leader(N) =:= undefined]).\n"
)
# A queue whose process is dead is listed and its declaration is answered, but it takes and gives nothing. A
# stream whose coordinator did not come back with the broker is not even listed: it is known as down.
DEAD_QUEUES = (
    b'All = rabbit_amqqueue:list(<<"/">>), Is = fun(T) -> '
    b"fun(Q) -> amqqueue:get_type(Q) =:= T end end, "
    b"Dead = [Q || Q <- lists:filter(Is(rabbit_quorum_queue), All), "
    b"whereis(element(1, amqqueue:get_pid(Q))) =:= undefined] ++ "
    b"[Q || Q <- lists:filter(Is(rabbit_stream_queue), All), "
    b"(catch is_process_alive(amqqueue:get_pid(Q))) =/= true] ++ "
    b'lists:filter(Is(rabbit_stream_queue), rabbit_amqqueue:list_down(<<"/">>)), '
    b"lists:usort([N || Q <- Dead, "
    b'"mb." ++ _ = N <- [binary_to_list(element(4, amqqueue:get_name(Q)))]]).\n'
)
NAMES = re.compile(r'\{ok, ?\[((?:"[^"]*"[,\s]*)*)\]\}')
COUNTED = re.compile(r"\{ok, ?(\d+)\}")
REVIVED = re.compile(r"\{ok, ?\[((ok|alive)(, ?(ok|alive))*)?\]\}")
# Each channel answers behind the publish that it routes, so when all have, nothing is on its way that was
# routed before. A channel that has ended meanwhile has routed all it ever will.
PASS_CHANNELS = (
    b"length([catch rabbit_channel:info(P, [messages_unconfirmed]) "
    b"|| P <- rabbit_channel:list_local()]).\n"
)
# Exact: ready, unacked, and those that wait to be dead-lettered. A queue's log may hold publishes that it has
# not applied yet: nothing counts as nothing only behind a command that came after them.
# Ra 3, of RabbitMQ 4.3, takes a name in place of a function, which would end the queues of Ra 2.
LEFT = (
    "F = fun(N) -> S = {N, node()}, "
    "{ok, {_, C}, _} = case catch ra:leader_query(S, fun rabbit_fifo:query_messages_total/1) of "
    "{'EXIT', {function_clause, _}} -> "
    "ra:leader_query(S, {rabbit_fifo, query_messages_total, []}); Told -> Told end, C end, "
    'list_to_tuple([case rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, B)) of {ok, Q} -> '
    "N = element(1, amqqueue:get_pid(Q)), case F(N) of 0 -> "
    "{ok, _, _} = ra:process_command({N, node()}, rabbit_fifo:make_garbage_collection()), F(N); "
    "C -> C end; _ -> 0 end || B <- [%s]]).\n"
)
# A tuple, since a list of small numbers is written as a text.
COUNTS = re.compile(r"\{ok, ?\{([\d, \n]*)\}\}")
# One "ok" per table; an empty list means that no table has that name any more.
ALL_OK = re.compile(r"\{ok, ?\[ok(, ?ok)*\]\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Access to the broker's Erlang node and its disk.

    home: folder made for `.erlang.cookie` (0400), given to erl_call as HOME: on its command line
    the cookie would be seen by everybody. erl_call: path, "" when there is none.
    data_dir: the broker's data folder, "" to leave the file system alone.
    """

    node_name: str
    epmd_port: int
    home: Path
    erl_call: str = ""
    data_dir: str = ""

    @classmethod
    def prepare(
        cls,
        *,
        node_name: str,
        epmd_port: int,
        cookie: str,
        home: Path,
        erl_call: str,
        data_dir: str,
    ) -> Settler:
        """Put the cookie into home and find erl_call. Without either, settling is slow."""
        program = erl_call or shutil.which("erl_call") or ""
        if not (cookie and node_name):
            program = ""
        if program:
            _write_cookie(home, cookie)
        return cls(
            node_name=node_name, epmd_port=epmd_port, home=home, erl_call=program, data_dir=data_dir
        )

    async def names_synced(self) -> bool:
        """Write and fsync the names of all queues. False: use the slow way."""
        if not self.erl_call:
            return False
        answer = await self._evaluated(SYNC_NAMES)
        if answer is None or not ALL_OK.fullmatch(answer.strip()):
            log.warning("settle by erl_call failed node=%s answer=%r", self.node_name, answer)
            return False
        return True

    async def queues_revived(self) -> int | None:
        """Start queues that died at the broker's boot. Returns how many; None: it is not known."""
        return await self._revived(REVIVE_QUEUES, "queues")

    async def dead_lettering_revived(self) -> int | None:
        """Start the at-least-once dead-letter workers, where all have ended. Returns as `queues_revived`."""
        return await self._revived(REVIVE_DEAD_LETTERING, "dead-lettering")

    async def _revived(self, expression: bytes, what: str) -> int | None:
        if not self.erl_call:
            return None
        answer = await self._evaluated(expression)
        if answer is None or not (found := REVIVED.fullmatch(answer.strip())):
            log.warning("%s could not be revived node=%s answer=%r", what, self.node_name, answer)
            return None
        return (found[1] or "").replace(" ", "").split(",").count("ok")

    async def queues_without_leader(self) -> int | None:
        """Return how many quorum queues cannot answer yet, after the broker's boot. None: it is not known.

        Triggers the election of queues that wait for one.
        """
        if not self.erl_call:
            return None
        answer = await self._evaluated(ELECT_LEADERS)
        if answer is None or not (found := COUNTED.fullmatch(answer.strip())):
            log.warning("leaders not counted node=%s answer=%r", self.node_name, answer)
            return None
        return int(found[1])

    async def queues_dead(self) -> list[str] | None:
        """Return our quorum queues and streams whose process is dead. None: it is not known."""
        found = await self._matched(DEAD_QUEUES, NAMES)
        return None if found is None else re.findall(r'"([^"]*)"', found[1])

    async def channels_passed(self) -> bool:
        """Wait until every channel has handed on what it routed before this call. False: it is not known."""
        return await self._matched(PASS_CHANNELS, COUNTED) is not None

    async def messages_left(self, queues: Sequence[str]) -> dict[str, int]:
        """Return the exact number of messages in each of these queues; of a missing one 0. {}: not known."""
        names = ", ".join(f'<<"{queue}">>' for queue in queues)
        found = await self._matched((LEFT % names).encode(), COUNTS)
        counts = (
            [] if found is None else [int(each) for each in found[1].split(",") if each.strip()]
        )
        return dict(zip(queues, counts, strict=True)) if len(counts) == len(queues) else {}

    async def _matched(self, expression: bytes, wanted: re.Pattern[str]) -> re.Match[str] | None:
        if not self.erl_call:
            return None
        answer = await self._evaluated(expression)
        found = wanted.fullmatch(answer.strip()) if answer is not None else None
        if found is None:
            log.warning("the node did not answer node=%s answer=%r", self.node_name, answer)
        return found

    async def files_synced(self) -> bool:
        """Write out the file system of the data folder. False: failed, or not within SYNC_TIMEOUT_S."""
        if not self.data_dir:
            return True
        done = await _run(["sync", "-f", self.data_dir], b"", {}, timeout_s=SYNC_TIMEOUT_S)
        if done is None:
            log.warning("sync of the data folder failed folder=%s", self.data_dir)
        return done is not None

    async def _evaluated(self, expression: bytes) -> str | None:
        """Return the node's answer.

        -R: the node gives the call a name. By default all calls have one name, and a node refuses a call
        while another one of its name is connected, as an operator's may be.
        """
        environ = {"HOME": str(self.home), "ERL_EPMD_PORT": str(self.epmd_port)}
        return await _run([self.erl_call, "-R", "-n", self.node_name, "-e"], expression, environ)


def _write_cookie(home: Path, cookie: str) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home / ".erlang.cookie"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w") as file:
        file.write(cookie)


async def _run(
    argv: list[str], stdin: bytes, environ: Mapping[str, str], *, timeout_s: float = CALL_TIMEOUT_S
) -> str | None:
    """Return a command's standard output; None when it failed or took too long (it is killed then)."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", os.defpath), **environ},
        )
    except OSError as fault:
        log.warning("%s does not start: %s", argv[0], fault)
        return None
    try:
        async with asyncio.timeout(timeout_s):
            out, _ = await process.communicate(stdin)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return out.decode("utf-8", "replace") if process.returncode == 0 else None
