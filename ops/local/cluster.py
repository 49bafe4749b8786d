"""A local cluster that can be started, broken and stopped: for the shell, for tests and for the bench.

    cluster = LocalCluster(folder, brokers=3)
    cluster.up()
    cluster.kill("mb2"); cluster.start("mb2"); cluster.wait_ready()
    cluster.down()

The folder holds everything: settings, secrets, data, logs, pid files. Any number of `LocalCluster`
objects, in any process, may share one folder; changes of its set of nodes hold its lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import httpx

from inventory.inventory import load
from lb.apply import prepare_start
from messagebus.broker import BrokerList
from messagebus.files import write_whole
from messagebus.secret import Secret
from messagebus.services.agent import genesis
from ops.commands import doors
from ops.errors import LocalFault
from ops.local import files, preflight, process, secrets, servers, watching
from ops.local.layout import (
    BALANCER,
    CA,
    DEFAULT_NETWORK,
    EPMD,
    HERE,
    SERVER_NAME,
    Layout,
    NodeLayout,
    Server,
    ServerChoice,
)
from ops.local.parts import AGENT_SUFFIX, Part, agent_part, epmd_environment, part, part_names
from ops.local.process import Process
from ops.local.roots import default_root, of_version, root_of
from ops.local.status import answers, cluster_status, not_ready, operator_tls
from ops.run.waiting import STALLED_S, START_AT_MOST_S, Patience

DEFAULT_BROKERS = 3
# A process that ended while others wait for it may be one that somebody is starting again.
GONE_S = 5.0
LOCK_WITHIN_S = 180.0
POLL_S = 0.05
HTTP_TIMEOUT_S = 5.0
# The shutting of doors waits 10 s for connections inside the node to end, and asks each queue.
EVALUATED_WITHIN_S = 120.0
# RabbitMQ 3.10's management agent asks at its end who is connected, of a process that waits for that end, and
# gives up after 5 s. Ended before everything else, it has its answer at once: a stop takes 2 s and not 7.
END_STATISTICS = "gen_event:delete_handler(rabbit_event, rabbit_mgmt_db_handler, [])."
END_STATISTICS_WITHIN_S = 2.0
LOG_TAIL_LINES = 3


class LocalCluster:
    """One folder with a cluster in it. Thread-safe as long as two calls do not concern one part.

    dir: made by `up` where it is missing. brokers: number of brokers of a new cluster.
    port_offset: added to all ports; None takes the first offset whose ports are free.
    tls, balancers: settings of a new cluster; see `Layout`.
    choices: servers to have beside the brokers; a known cluster keeps those that it has.
    root: setting of a new cluster; see `Layout.root`. None is $MESSAGEBUS_LOCAL_ROOT, else /.
    say: called with one line for each thing that a person should know. show: with the thing waited for now.
    """

    def __init__(
        self,
        dir: str | Path,
        brokers: int = DEFAULT_BROKERS,
        *,
        network: str = DEFAULT_NETWORK,
        port_offset: int | None = None,
        tls: bool = False,
        balancers: int = 1,
        root: Path | None = None,
        choices: Sequence[ServerChoice] = (),
        say: Callable[[str], None] = lambda line: None,
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.dir = Path(dir).resolve()
        self._brokers = brokers
        self._network = network
        self._port_offset = port_offset
        self._tls = tls
        self._balancers = balancers
        self._root = root and root.resolve()
        self._choices = choices
        self._say = say
        self._show = show

    # -- the whole cluster

    def up(self) -> None:
        """Start all missing parts and wait until every broker takes publishes.

        Raises LocalFault; the parts that this call started are then stopped again.
        """
        with self._lock():
            known = self._known()
            layout = known or self._new_layout()
            if self._tls and not layout.tls:
                raise LocalFault(f"the cluster in {self.dir} has no TLS; take another folder")
            if self._root and self._root != layout.root:
                raise LocalFault(
                    f"the programs of the cluster in {self.dir} are those in {layout.root}; "
                    "take another folder"
                )
            layout = self._with_choices(layout)
            if known and not self._stopped_parts(layout):
                self._say(f"already running in {self.dir}")
                self.wait_ready()
                return
            launched: list[str] = []
            try:
                self._bring_up(layout, launched)
            except BaseException:
                if launched:
                    self._stop_parts(self.layout, launched)
                raise

    def down(self, *, wipe: bool = False) -> None:
        """Stop everything, gracefully first. wipe: remove the data too. Does nothing when nothing runs."""
        with self._lock():
            if layout := self._known():
                self._stop_parts(layout, part_names(layout))
            process.kill(process.marked(f"{self.dir}#"))
            if wipe:
                self._wipe()

    def _bring_up(self, layout: Layout, launched: list[str]) -> None:
        stopped = self._stopped_parts(layout)
        to_start = [node for node in layout.nodes if node.name in stopped]
        self.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        preflight.check(layout, to_start=len(to_start))
        claim = self._claim(layout) if EPMD in stopped else preflight.Claim(layout, ())
        try:
            layout = self._place_servers(claim.layout, stopped)
            self._write_files(layout)
            for name in stopped:
                launched.append(name)
                self._launch(part(layout, name), keep_fds=claim.fds if name == EPMD else ())
        finally:
            claim.release()
        for name in stopped:
            self._show(f"waiting for {name}")
            self._wait_answers(part(layout, name))
        self.wait_ready()

    def _claim(self, layout: Layout) -> preflight.Claim:
        """Claim ports for a cluster of which nothing runs."""
        if len(self._stopped_parts(layout)) < len(part_names(layout)):
            return preflight.Claim(layout, ())
        claim = preflight.claim_ports(layout, port_offset=self._port_offset)
        if claim.layout.offset != (self._port_offset or 0):
            self._say(
                f"default ports are in use: all ports are {claim.layout.offset} higher, "
                f"AMQP is {claim.layout.front.amqp}"
            )
        return claim

    # -- one part: "mb2", "mb2-agent", "haproxy" or "epmd"

    def start(self, name: str, *, agent: bool = False, wait: bool = True) -> None:
        """Start a part that does not run, or open the doors of a broker that does.

        wait: return when it answers on its port.
        """
        wanted = part(self.layout, _part_name(name, agent))
        if not self._find(wanted.name):
            process.kill(process.marked(self._mark(wanted.name)))
            self._launch(wanted)
        elif wanted.kind == "broker" and not self._answers(wanted):
            with suppress(LocalFault):  # it may be in the middle of its boot, which opens them
                self.evaluate(wanted.name, doors.opened())
        if wait:
            self._wait_answers(wanted)

    def stop(self, name: str, *, agent: bool = False) -> None:
        """Stop a part gracefully; with SIGKILL after its time limit."""
        self._stop_parts(self.layout, [_part_name(name, agent)])

    def kill(
        self, name: str, *, agent: bool = False, number: signal.Signals = signal.SIGKILL
    ) -> None:
        """Signal a part, SIGKILL by default, and wait until it has ended, or stands still after SIGSTOP.

        Raises LocalFault when it does not run.
        """
        wanted = part(self.layout, _part_name(name, agent))
        found = self._find(wanted.name)
        # PostgreSQL's children work on their own.
        family = process.family if number == signal.SIGCONT else process.hold
        children = family(found)[1:] if found and wanted.kind == "server" else []
        if not found or not process.send(found, number):
            raise LocalFault(f"{wanted.name} does not run")
        for child in children:
            process.send(child, number)
        if number == signal.SIGSTOP:
            process.wait_stopped([found])
        if number == signal.SIGKILL:
            process.wait_gone([found, *children], within_s=process.KILL_WITHIN_S)
            # HAProxy's worker and Erlang's helpers would end by themselves, a moment later.
            process.kill(process.marked(self._mark(wanted.name)))

    def freeze(self, name: str, *, agent: bool = False) -> None:
        """Stop a part by SIGSTOP: it still holds its sockets and answers nothing."""
        self.kill(name, agent=agent, number=signal.SIGSTOP)

    def thaw(self, name: str, *, agent: bool = False) -> None:
        self.kill(name, agent=agent, number=signal.SIGCONT)

    def evaluate(self, name: str, expression: str) -> str:
        """Have a broker's Erlang node evaluate an expression that ends with a dot; return its value as text.

        Raises LocalFault when it cannot, or the node does not answer.
        """
        answer = self._erl_call(name, expression, within_s=EVALUATED_WITHIN_S)
        if not answer.startswith("{ok, "):
            raise LocalFault(f"{name}: {answer or 'its Erlang node does not answer'}")
        return answer.removeprefix("{ok, ").removesuffix("}").strip('"')

    # -- the set of nodes

    def provision(self, name: str, version: str = "") -> None:
        """Make a node's folder and enter it into the inventory; nothing is started.

        It gets the present list, which does not name it.
        version: of its RabbitMQ, a key of `roots.RELEASES`; "" for the cluster's.
        """
        if version:
            of_version(version, say=self._show)
        with self._lock():
            layout = self.layout.with_node(name, version)
            self._write_files(layout)
            layout.node(name).list_file.write_text(layout.list_file.read_text())

    def forget(self, name: str) -> None:
        """Remove a stopped node from the inventory, with its folder; a second call does no harm."""
        with self._lock():
            layout = self.layout
            folder = layout.with_node(name).node(name).dir
            if self._find(name) or self._find(agent_part(name)):
                raise LocalFault(f"{name} still runs")
            if name in self.names:
                self._save(layout.without_node(name))
            shutil.rmtree(folder, ignore_errors=True)

    # -- what there is

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Bring the cluster up; stop and remove it at the exit."""
        try:
            self.up()
            yield self
        finally:
            self.down(wipe=True)

    @property
    def layout(self) -> Layout:
        """The addresses and files. Raises LocalFault when there is no cluster in the folder."""
        if layout := self._known():
            return layout
        raise LocalFault(f"no cluster in {self.dir}: `python -m ops local up` makes one")

    @property
    def names(self) -> list[str]:
        """The names of all brokers: mb1, mb2, ..."""
        return [node.name for node in self.layout.nodes]

    def node(self, name: str) -> NodeLayout:
        return self.layout.node(name)

    @property
    def brokers(self) -> list[str]:
        """The addresses of all brokers, ``host:port``, in the order of their names."""
        return [self.node(name).broker for name in self.names]

    def name_of(self, broker: str) -> str:
        """Return the name of the node with this address, ``host:port``."""
        return next(name for name in self.names if self.node(name).broker == broker)

    @property
    def broker(self) -> str:
        """HAProxy's AMQP address."""
        return self.layout.front.amqp

    @property
    def list_url(self) -> str:
        return self.layout.list_url

    @property
    def inventory(self) -> Path:
        return self.layout.inventory

    @property
    def password(self) -> Secret:
        """The password of the user bus."""
        return secrets.read(self.layout.secret(secrets.BUS))

    @property
    def admin_password(self) -> Secret:
        return secrets.read(self.layout.secret(secrets.ADMIN))

    @property
    def token(self) -> Secret:
        """The operators' token of the agents."""
        return secrets.read(self.layout.secret(secrets.TOKEN))

    def client_env(self) -> dict[str, str]:
        """Return the environment variables of a client's process."""
        layout = self.layout
        env = {
            "MESSAGEBUS_BROKER": self.broker,
            "MESSAGEBUS_LIST_URL": self.list_url,
            "MESSAGEBUS_USER": "bus",
            "MESSAGEBUS_PASSWORD_FILE": str(layout.secret(secrets.BUS)),
        }
        if layout.tls:
            env |= {
                "MESSAGEBUS_TLS": "true",
                "MESSAGEBUS_TLS_CA_FILE": str(layout.tls_file(CA)),
                "MESSAGEBUS_TLS_CERT_FILE": str(layout.tls_file(f"{files.CLIENT}.pem")),
                "MESSAGEBUS_TLS_KEY_FILE": str(layout.tls_file(f"{files.CLIENT}.key")),
                "MESSAGEBUS_TLS_SERVER_NAME": SERVER_NAME,
            }
        return env

    def management(self, name: str) -> httpx.Client:
        """Return a client of this broker's management API, as admin; close it after use."""
        return httpx.Client(
            base_url=f"{self.layout.scheme}://{self.node(name).management}",
            auth=("admin", self.admin_password.reveal()),
            timeout=HTTP_TIMEOUT_S,
            trust_env=False,
            verify=operator_tls(self.layout).client_context(),
        )

    def consumer_list(self) -> BrokerList:
        """Return the operators' copy of the consumer list."""
        return BrokerList.parse(self.layout.list_file.read_text())

    def process_of(self, name: str, *, agent: bool = False) -> Process | None:
        """Return the running process of a part."""
        return self._find(_part_name(name, agent))

    def status(self) -> dict[str, Any]:
        """Return the state of all parts, as `python -m ops local status --json` prints it."""
        return cluster_status(self.layout, self.consumer_list(), self._pid_file)

    def wait_ready(self, names: Iterable[str] = (), *, within_s: float = START_AT_MOST_S) -> None:
        """Wait until these brokers, all by default, take publishes through the balancer.

        within_s: the wait ends before when nothing moves for STALLED_S.
        Raises LocalFault with the brokers that do not, and the reasons; at once where a part has died.
        """
        nodes = [self.node(name) for name in names] or self.layout.nodes
        parts = [name for node in nodes for name in (node.name, agent_part(node.name))]
        parts += [front.name for front in self.layout.fronts]
        waiting: list[str] = []
        patience = Patience(
            lambda: (tuple(waiting), self._movement(parts)),
            stalled_s=min(within_s, STALLED_S),
            at_most_s=within_s,
        )
        dead: dict[str, float] = {}
        while waiting := not_ready(self.layout, nodes):
            if why := patience.spent():
                raise LocalFault(f"not ready {why}: {', '.join(waiting)}")
            self._look_for_the_dead(parts, dead)
            self._show(f"waiting for {', '.join(waiting)}")
            time.sleep(POLL_S)

    def _look_for_the_dead(self, parts: Iterable[str], since_s: dict[str, float]) -> None:
        """Raise LocalFault for a part that has died, not by our stop. since_s: first look without it."""
        now_s = time.monotonic()
        for name in parts:
            if self._find(name) or not self._pid_file(name).exists():
                since_s.pop(name, None)
            elif now_s - since_s.setdefault(name, now_s) > GONE_S:
                raise LocalFault(f"{name} has ended: {self._last_words(name)}")

    # -- inside

    def _known(self) -> Layout | None:
        state = self.dir / "cluster.json"
        return Layout.from_json(self.dir, state.read_text()) if state.exists() else None

    def _new_layout(self) -> Layout:
        numbers = tuple(range(1, self._brokers + 1))
        root = self._root or default_root()
        return Layout(
            dir=self.dir,
            network=self._network,
            numbers=numbers,
            tls=self._tls,
            root=root,
            balancers=self._balancers,
        )

    def _with_choices(self, layout: Layout) -> Layout:
        """Add the servers that are asked for and not there yet."""
        known = {choice.kind for choice in layout.choices}
        new = [choice for choice in self._choices if choice.kind not in known]
        return replace(layout, choices=(*layout.choices, *new))

    def _place_servers(self, layout: Layout, stopped: Sequence[str]) -> Layout:
        """Give a port to each server that is to start and has none, or one that is in use by now."""
        choices = [
            choice
            if choice.kind not in stopped
            else choice._replace(
                port=preflight.free_port(
                    server.host, server.port or servers.kind_of(server.kind).port + layout.offset
                )
            )
            for choice, server in zip(layout.choices, layout.servers, strict=True)
        ]
        return replace(layout, choices=tuple(choices))

    def _write_files(self, layout: Layout) -> None:
        """Write all files that the parts read. State and secrets are kept, the rest is written anew."""
        secrets.ensure(layout.secrets_dir)
        if layout.tls:
            files.write_certificates(layout)
        fronts = (front.dir for front in layout.fronts)
        for folder in (*fronts, layout.run_dir, layout.list_file.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if layout.root != HERE:
            files.write_haproxy(layout)
        for node in layout.nodes:
            files.write_node(layout, node)
            if self._known() is None:
                genesis(node.agent_dir)
        self._write_lists(layout)
        self._save(layout)

    def _write_lists(self, layout: Layout) -> None:
        """Write the list of a new cluster, or of one whose ports have moved."""
        known = self._known()
        if known is None or known.offset != layout.offset:
            generation = self.consumer_list().generation + 1 if layout.list_file.exists() else 1
            text = files.first_list(layout, generation).render()
            for file in (layout.list_file, *(node.list_file for node in layout.nodes)):
                file.write_text(text)

    def _save(self, layout: Layout) -> None:
        write_whole(layout.inventory, files.inventory_toml(layout), mode=0o644)
        write_whole(layout.state_file, layout.to_json(), mode=0o644)

    def _mark(self, name: str) -> str:
        return f"{self.dir}#{name}#"

    def _pid_file(self, name: str) -> Path:
        return self.dir / "run" / f"{name}.pid"

    def _find(self, name: str) -> Process | None:
        return process.find(self._pid_file(name))

    def _stopped_parts(self, layout: Layout) -> list[str]:
        return [name for name in part_names(layout) if not self._find(name)]

    def _launch(self, wanted: Part, keep_fds: Iterable[int] = ()) -> None:
        layout = self.layout
        if wanted.kind == "balancer":
            inventory = load(layout.inventory)
            prepare_start(inventory.at(inventory.find_balancer(wanted.name)))
        if wanted.kind == "server":
            watching.write(layout, self._server(wanted.name), self.client_env())
            servers.prepare(self._server(wanted.name))
        if wanted.kind == "broker":
            # Passwords may have changed since it was made; a broker imports its users at every boot.
            files.write_definitions(layout, layout.node(wanted.name))
        process.spawn(
            wanted.argv,
            env=wanted.env,
            log=layout.log_file(wanted.name),
            pid_file=self._pid_file(wanted.name),
            mark=self._mark(wanted.name),
            keep_fds=keep_fds,
        )

    def _wait_answers(self, wanted: Part) -> None:
        patience = Patience(lambda: self._movement([wanted.name]))
        while not self._answers(wanted):
            if not self._find(wanted.name):
                raise LocalFault(
                    f"{wanted.name} ended at its start: {self._last_words(wanted.name)}"
                )
            if why := patience.spent():
                words = self._last_words(wanted.name)
                raise LocalFault(f"{wanted.name} does not answer {why}: {words}")
            time.sleep(POLL_S)

    def _movement(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """Return for each part the size of its log and the processor time that it has used."""
        found = [(self.layout.log_file(name), self._find(name)) for name in names]
        return [
            (log.stat().st_size if log.exists() else 0, one.cpu_ticks if one else 0)
            for log, one in found
        ]

    def _answers(self, wanted: Part) -> bool:
        if wanted.kind == "server":
            return servers.serves(self._server(wanted.name))
        return answers(wanted.address)

    def _server(self, name: str) -> Server:
        return next(server for server in self.layout.servers if server.name == name)

    def _last_words(self, name: str) -> str:
        log = self.layout.log_file(name)
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        words = " | ".join([line for line in lines if line][-LOG_TAIL_LINES:])
        return f"{words or 'it wrote nothing'} ({log})"

    def _stop_parts(self, layout: Layout, names: Iterable[str]) -> None:
        """Stop parts in the order opposite to their start; parts of one kind together."""
        parts = [part(layout, name) for name in names]
        for kind in ("server", "balancer", "agent", "broker", "epmd"):
            self._stop_together([one for one in parts if one.kind == kind])

    def _stop_together(self, parts: list[Part]) -> None:
        running = {one.name: found for one in parts if (found := self._find(one.name))}
        for one in parts:
            if one.kind == "broker" and one.name in running:
                self._end_statistics(one.name)
        stops = {one.name: one.stop for one in parts}
        for name, found in running.items():
            process.send(found, stops[name])
            # A frozen process would see the signal only when it is thawed.
            for member in process.family(found):
                process.send(member, signal.SIGCONT)
        within_s = max((one.stop_within_s for one in parts), default=0)
        process.wait_gone(running.values(), within_s=within_s)
        for one in parts:
            process.kill(process.marked(self._mark(one.name)))
            (self._pid_file(one.name)).unlink(missing_ok=True)

    def _end_statistics(self, name: str) -> None:
        """End a broker's management agent before the broker. Where that fails, the stop takes longer."""
        if root_of(self.layout, self.node(name)) == HERE:  # newer brokers need no help
            self._erl_call(name, END_STATISTICS, within_s=END_STATISTICS_WITHIN_S)

    def _erl_call(self, name: str, expression: str, *, within_s: float) -> str:
        """Return what `erl_call` writes; "" where it cannot run, or takes longer.

        -R: with its default name the node would refuse it while the agent's is there.
        """
        layout = self.layout
        node = layout.node(name)
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                ["erl_call", "-R", "-sname", node.node_name, "-e"],
                input=f"{expression}\n".encode(),
                env={**epmd_environment(layout.epmd_port), "HOME": str(node.home)},
                capture_output=True,
                check=False,
                timeout=within_s,
            )
            return (done.stdout or done.stderr).decode(errors="replace").strip()
        return ""

    def _wipe(self) -> None:
        """Remove our files; a folder that holds other files is left with them."""
        fronts = [front.name for front in self.layout.fronts] if self._known() else [BALANCER]
        for name in (
            "nodes",
            "servers",
            "run",
            *fronts,
            "secrets",
            "tls",
            "consumer_lists",
            "journal",
        ):
            shutil.rmtree(self.dir / name, ignore_errors=True)
        for name in ("inventory.toml", "cluster.json", "lock", "ops.lock"):
            (self.dir / name).unlink(missing_ok=True)
        if self.dir.exists() and not any(self.dir.iterdir()):
            self.dir.rmdir()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock while the cluster as a whole changes.

        The end of the process frees it, however it ends.
        """
        # The folder holds messages and hashes of passwords.
        self.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + LOCK_WITHIN_S
            while not _try_lock(fd):
                if time.monotonic() > until:
                    raise LocalFault(f"another command is at work in {self.dir}")
                time.sleep(POLL_S)
            yield
        finally:
            os.close(fd)


def _part_name(name: str, agent: bool) -> str:
    return agent_part(name) if agent and not name.endswith(AGENT_SUFFIX) else name


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
