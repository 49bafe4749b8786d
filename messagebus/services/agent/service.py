"""One agent: its parts put together, its listeners, its end.

Everything runs on one asyncio loop; only files are written in threads.
"""

# Service ─┬─ Store                 map, operators' drain and report on disk
#          ├─ ListFile, Clients     the consumer list here, and the clients that have applied it
#          ├─ Upkeep                the own broker: link, gate, applied map, partitions, losses
#          ├─ Topology ─ Register   the map, agreed on with the other agents (`Peers`)
#          ├─ Moves, Expiry         partitions that move, subscriptions that expire
#          ├─ Management, Loads     alarms, policies and figures of the own broker
#          └─ application           the HTTP interface, which speaks for all of them
#
# Whatever waits for something is a task of its own, begun again when it fails (`_kept`). The service itself
# keeps only what the verdict adds to the upkeep's condition: drain, alarm, policies.

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from messagebus._io.amqp.control import Right, rights_of
from messagebus._io.amqp.link import Credentials
from messagebus.clock import monotonic_ms
from messagebus.errors import ConfigError
from messagebus.http.connections import Bounds, connections_below_descriptors
from messagebus.http.listening import Tls, listen
from messagebus.http.server import ACCEPTED_AT_ONCE, STOP_TIMEOUT_S, Server
from messagebus.secret import Secret
from messagebus.services.agent.broker.answering import Answering
from messagebus.services.agent.broker.loads import Counting, Loads
from messagebus.services.agent.broker.losses import Loss
from messagebus.services.agent.broker.management import Management, ManagementUnavailable
from messagebus.services.agent.broker.settle import Settler
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.config import AgentConfig, read_secret
from messagebus.services.agent.consumer_list import Clients, ListFile
from messagebus.services.agent.gate import Condition, Verdict, VerdictKind, verdict
from messagebus.services.agent.topology.agreement import Topology
from messagebus.services.agent.topology.expiry import Expiry, Uses
from messagebus.services.agent.topology.moves import Moves
from messagebus.services.agent.topology.peers import Node, Peers
from messagebus.services.agent.topology.register import Register
from messagebus.services.agent.topology.store import Store
from messagebus.services.agent.web import observe
from messagebus.services.agent.web.login import Login
from messagebus.services.agent.web.metrics import Figure, Metrics, figures_of_mirror, mirror_of
from messagebus.services.agent.web.observe import Observer
from messagebus.services.agent.web.parts import Parts
from messagebus.services.agent.web.routes import application
from messagebus.services.agent.web.tap import Taps
from messagebus.services.agent.web.trail import Trail

log = logging.getLogger("messagebus.agent")

LOGIN_TIMEOUT_MS = 2_000
# An alarm stops publishers at once; within this time they are led to other brokers.
ALARM_INTERVAL_S = 2.0
POLICIES_INTERVAL_S = 30.0
# Delay of a change of the verdict in the log; balancers get it at once.
TELL_INTERVAL_S = 0.5
# Delay until new certificates are shown to peers.
CERTIFICATES_INTERVAL_S = 10.0
CHECK_TIMEOUT_S = 1.0
CONNECTIONS_MAX = 30_000
# OBSERVED_NAMES_MAX names stand in one address.
HEADER_BYTES_MAX = 64 << 10
# Pauses before a failed task begins again: a bug that comes back at once writes two lines a minute.
TASK_PAUSE_MIN_S, TASK_PAUSE_MAX_S = 0.1, 30.0


class Service:
    """The agent of one broker."""

    def __init__(self, config: AgentConfig) -> None:
        """Read the stored state. Raises ConfigError when files or folders are unusable."""
        self._config = config
        self._store = Store(config.state_dir)
        self._store.prepare()
        _ = config.password, config.token
        register = Register(config.address.name, self._store.load_map())
        self._draining = self._store.load_draining()
        self._alarm = self._losing = ""
        self._logged = (VerdictKind.DOWN, False)
        self.task_faults = 0
        self._report_due = asyncio.Event()
        pull_now, uses = asyncio.Event(), Uses()
        self.lists = ListFile(config.list_file)
        self.clients = Clients()
        self._management = Management(config)
        self._loads = Loads(self._management)
        self._tls = config.tls_files if config.tls else None
        self._peers = Peers(
            config.address.name,
            token=lambda: config.token,
            tls=self._tls,
            on_nodes=self._report_due.set,
        )
        settler = _settler(config)
        self.upkeep = Upkeep(
            config,
            register,
            settler=settler,
            management=self._management,
            on_new_life=pull_now.set,
            on_report=self._report_due.set,
            on_gone=uses.gone,
        )
        self._load_report()
        self.topology = Topology(
            me=config.address.name,
            register=register,
            store=self._store,
            peers=self._peers,
            lists=self.lists,
            upkeep=self.upkeep,
            answering=Answering(config.address, register, self.upkeep, on_used=uses.used),
            pull_now=pull_now,
        )
        self.moves = Moves(
            me=config.address.name,
            topology=self.topology,
            upkeep=self.upkeep,
            settler=settler,
            peers=self._peers,
            lists=self.lists,
        )
        self.expiry = self._expiry(uses)

    def _expiry(self, uses: Uses) -> Expiry:
        return Expiry(
            me=self._config.address.name,
            uses=uses,
            upkeep=self.upkeep,
            topology=self.topology,
            peers=self._peers,
            lists=self.lists,
            clients=self._subscriptions_of_clients,
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises ConfigError when a port is not available."""
        config = self._config
        http = listen("http", config.http)
        try:
            check = listen("check", config.check)
        except ConfigError:
            http.close()
            raise
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        if self.lists.look():
            self.topology.list_changed()
        bounds = Bounds(
            connections_max=connections_below_descriptors(CONNECTIONS_MAX),
            header_bytes_max=HEADER_BYTES_MAX,
        )
        tls = Tls(self._tls) if self._tls else None
        server = Server(self._application(), http, bounds, tls=tls)

        def stop() -> None:
            server.stop()
            self.lists.end()

        checks = await asyncio.start_server(
            self._answer_check, sock=check, backlog=ACCEPTED_AT_ONCE
        )
        log.info(
            "agent serves broker=%s http=%s check=%s", config.broker, config.http, config.check
        )
        await _until(
            stopping,
            server.run(),
            self._kept("list", lambda: self.lists.watch(self.topology.list_changed)),
            self._kept("topology", self.topology.run),
            self._kept("upkeep", self.upkeep.run),
            self._kept("lists", self.upkeep.compare),
            self._kept("expiry", self.expiry.run),
            self._kept("moves", self.moves.run),
            self._kept("alarms", self._watch_alarms),
            self._kept("policies", self._watch_policies),
            self._kept("loads", lambda: self._loads.watch(monotonic_ms)),
            self._kept("reports", self._write_reports),
            self._kept("verdicts", self._tell_verdicts),
            self._kept("certificates", self._renew_certificates),
            first=stop,
        )
        checks.close()
        await self._peers.close()
        await self._management.close()
        log.info("agent stopped broker=%s", config.broker)

    async def _kept(self, what: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task to its end; after an exception of its own begin it again, after growing pauses.

        Without this one broken answer or one bug in one task would end the list, the gate and the
        repairs of this broker with it.
        """
        pause_s = TASK_PAUSE_MIN_S
        while True:
            began_s = time.monotonic()
            try:
                return await task()
            except Exception:
                self.task_faults += 1
                log.exception("task failed, begun again task=%s pause_s=%.1f", what, pause_s)
            await asyncio.sleep(pause_s)
            lived = time.monotonic() - began_s > TASK_PAUSE_MAX_S + pause_s
            pause_s = TASK_PAUSE_MIN_S if lived else min(2 * pause_s, TASK_PAUSE_MAX_S)

    # The verdict on the broker.

    @property
    def condition(self) -> Condition:
        return replace(
            self.upkeep.condition,
            alarm=self._alarm,
            losing=self._losing,
            draining=self._draining_reason(),
            joining=self.topology.joining,
        )

    def verdict(self) -> Verdict:
        return verdict(self.condition, monotonic_ms())

    async def set_draining(self, draining: bool) -> None:
        """Set the operators' drain; it is on disk before it counts. Raises OSError."""
        await asyncio.to_thread(self._store.save_draining, draining)
        self._draining = draining
        log.info("draining=%s by operators broker=%s", draining, self._config.broker)

    def _draining_reason(self) -> str:
        if self._draining:
            return "operators drain it"
        if not (current := self.lists.current):
            return ""
        listed = current.find(self._config.address.name)
        if listed is None:
            return "not on the consumer list: no consumer would read there"
        return "draining in the consumer list" if listed.draining else ""

    async def _answer_check(
        self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer ready or drain, never up or down: that is up to the gate, and must not depend on an agent.

        Answers nothing while nothing is known: an agent that just started changes nothing,
        otherwise the restart of all agents at once would drain all brokers.
        """
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self.upkeep.link.tried.wait()
                is_ready = self.verdict().kind is VerdictKind.READY
                writer.write(b"ready\n" if is_ready else b"drain\n")
                await writer.drain()
        writer.close()

    async def _watch_alarms(self) -> None:
        while self._management.is_there:
            with contextlib.suppress(ManagementUnavailable):
                if self.upkeep.link.is_open:
                    self._alarm = await self._management.alarm()
            await asyncio.sleep(ALARM_INTERVAL_S)

    async def _watch_policies(self) -> None:
        while self._management.is_there:
            with contextlib.suppress(ManagementUnavailable):
                if self.upkeep.link.is_open:
                    self._losing = await self._management.losing_policies()
            await asyncio.sleep(POLICIES_INTERVAL_S)

    async def _tell_verdicts(self) -> None:
        """Log when the verdict changes."""
        while True:
            now = self.verdict()
            is_well = now.kind is VerdictKind.READY and not now.reason
            if (now.kind, is_well) != self._logged:
                self._logged = (now.kind, is_well)
                level = logging.INFO if is_well else logging.WARNING
                log.log(level, "verdict %s %s", now.kind.value, now.reason)
            await asyncio.sleep(TELL_INTERVAL_S)

    async def _renew_certificates(self) -> None:
        """Use replaced certificates from the next connection on, without a restart."""
        files = self._tls
        if files is None:
            return
        used = seen = files.client_context()
        while True:
            await asyncio.sleep(CERTIFICATES_INTERVAL_S)
            try:
                if (now := files.client_context()) is not seen:
                    files.refresh(used)
                    seen = now
                    log.info("certificates read again broker=%s", self._config.broker)
            except ConfigError as fault:
                log.warning("certificates not read again reason=%r", str(fault))

    # The stored report.

    def _load_report(self) -> None:
        report = self._store.load_report()
        try:
            self.upkeep.applied.held = {str(k): int(v) for k, v in report.get("held", {}).items()}
            self.upkeep.losses.restore(Loss(**loss) for loss in report.get("losses", []))
            self._peers.nodes = {k: Node(**node) for k, node in report.get("nodes", {}).items()}
        except (AttributeError, TypeError, ValueError) as fault:
            log.warning("stored report is unusable: %s", fault)

    async def _write_reports(self) -> None:
        while True:
            await self._report_due.wait()
            self._report_due.clear()
            losses = [asdict(loss) for loss in self.upkeep.losses.kept]
            nodes = {name: asdict(node) for name, node in self._peers.nodes.items()}
            report = {
                "held": self.upkeep.applied.held,
                "losses": losses,
                "nodes": nodes,
            }
            try:
                await asyncio.to_thread(self._store.save_report, report)
            except OSError as fault:
                log.warning("report not stored: %s", fault)

    # The interface.

    def _application(self) -> Any:
        config, started = self._config, secrets.token_hex(4)
        return application(
            Parts(
                broker=config.address.name,
                lists=self.lists,
                clients=self.clients,
                topology=self.topology,
                upkeep=self.upkeep,
                login=Login(token=lambda: config.token, try_login=self._try_login),
                counting=Counting(self.upkeep, self._management),
                observer=self._observer(started),
                unused_s=self.expiry.unused_s,
                metrics=Metrics(config.address.name, self._figures),
                verdict=self.verdict,
                is_draining=lambda: self._draining,
                set_draining=self.set_draining,
                started=started,
                node=_node(config),
                names=config.hosts,
                moves=self.moves,
                taps=Taps(config.address.name, self.upkeep.link.dial_tap),
                trail=_trail(config),
            )
        )

    def _observer(self, started: str) -> Observer:
        config = self._config
        return Observer(
            observe.Parts(
                broker=config.address.name,
                started=started,
                register=self.topology.register,
                upkeep=self.upkeep,
                lists=self.lists,
                clients=self.clients,
                loads=self._loads,
                condition=lambda: self.condition,
                verdict=self.verdict,
                mirror=lambda: mirror_of(config.mirror_device),
                certificate_s=self._certificate_s,
            )
        )

    def _subscriptions_of_clients(self) -> list[tuple[str, float]]:
        return [(c.subscription, c.age_ms / 1000) for c in self.clients.living(monotonic_ms())]

    async def _try_login(
        self, user: str, password: Secret, rights: Collection[Right]
    ) -> set[Right] | None:
        credentials = Credentials(
            user=user,
            password=password,
            client_id="agent checks a login",
            tls=self._tls.client_context() if self._tls else None,
        )
        return await rights_of(
            self._config.address, credentials, rights, timeout_ms=LOGIN_TIMEOUT_MS
        )

    def _figures(self) -> Iterator[Figure]:
        condition, kind = self.condition, self.verdict().kind
        yield Figure("ready", kind is VerdictKind.READY)
        yield Figure("draining", bool(condition.draining))
        yield Figure("alarm", bool(condition.alarm))
        yield Figure("losing", bool(self._losing))
        yield Figure("task_faults", self.task_faults)
        yield from self.upkeep.figures()
        yield from self.topology.figures()
        yield from self.expiry.figures()
        yield from self._peers.figures()
        yield from self.lists.figures()
        yield from self.clients.figures(monotonic_ms(), self.lists.generation)
        yield from self._loads.figures()
        yield from figures_of_mirror(self._config.mirror_device)
        yield from self._figures_of_certificates()

    def _figures_of_certificates(self) -> Iterator[Figure]:
        """Yield none without TLS, and none for a file that cannot be read now."""
        if left_s := self._certificate_s():
            yield Figure("certificate_seconds_left", round(left_s))

    def _certificate_s(self) -> float:
        """Return the seconds until our certificate ends; 0 without TLS, or when it cannot be read."""
        end_s = self._tls.good_until_s() if self._tls else None
        return end_s - time.time() if end_s else 0.0


async def _until(
    stopping: asyncio.Event, server: Coroutine[Any, Any, None], *others: Any, first: Any
) -> None:
    """Run all until stopping is set or one fails; the server ends first, and politely."""
    serving = asyncio.ensure_future(server)
    tasks = [serving, *(asyncio.ensure_future(other) for other in others)]
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    while not stop.done() and not any(_failed(task) for task in tasks):
        rest = [task for task in tasks if not task.done()]
        await asyncio.wait([*rest, stop], return_when=asyncio.FIRST_COMPLETED)
    first()
    await asyncio.wait([serving], timeout=2 * STOP_TIMEOUT_S)
    for task in (*tasks, stop):
        task.cancel()
    ended, stuck = await asyncio.wait(tasks, timeout=2 * STOP_TIMEOUT_S)
    for task in stuck:
        log.warning("did not stop in time: %s", task)
    for task in ended:
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault


def _failed(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _node(config: AgentConfig) -> dict[str, str | int] | None:
    if not config.node_name:
        return None
    return {"name": config.node_name, "epmd_port": config.epmd_port}


def _trail(config: AgentConfig) -> Trail | None:
    folder = Path(config.state_dir) / "trail"
    return Trail(folder, config.trail_bytes) if config.trail_bytes else None


def _settler(config: AgentConfig) -> Settler:
    cookie = read_secret("cookie_file", config.cookie_file).reveal() if config.cookie_file else ""
    settler = Settler.prepare(
        node_name=config.node_name,
        epmd_port=config.epmd_port,
        cookie=cookie,
        home=Path(config.state_dir) / "erlang",
        erl_call=config.erl_call,
        data_dir=config.data_dir,
    )
    if not settler.erl_call:
        log.warning("no erl_call, node_name or cookie_file: settling a queue takes seconds")
    return settler
