"""A local cluster that can be started, broken and stopped: for the shell, for tests and for the bench.

    cluster = LocalCluster(folder, brokers=3)
    cluster.up()
    cluster.kill("mb2"); cluster.start("mb2"); cluster.wait_ready()
    cluster.down()

The folder holds everything: settings, secrets, data, logs, pid files. Any number of `LocalCluster`
objects, in any process, may share one folder; changes of its set of nodes hold its lock.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx

from messagebus.broker import BrokerList
from messagebus.secret import Secret
from messagebus.terminal import plural
from ops.commands import doors
from ops.errors import LocalFault
from ops.local import files, preflight, process, secrets, servers
from ops.local.folder import Folder
from ops.local.layout import (
    DEFAULT_NETWORK,
    EPMD,
    Layout,
    NodeLayout,
    ServerChoice,
)
from ops.local.parts import (
    AGENT_SUFFIX,
    agent_part,
    broker_environment,
    ctl_argv,
    part,
    part_names,
)
from ops.local.process import Process
from ops.local.processes import Processes
from ops.local.roots import default_root, of_version
from ops.local.status import cluster_status, not_ready, operator_tls
from ops.run.waiting import STALLED_S, START_AT_MOST_S, Patience

DEFAULT_BROKERS = 3
POLL_S = 0.05
HTTP_TIMEOUT_S = 5.0
# The shutting of doors waits 10 s for connections inside the node to end, and asks each queue.
EVALUATED_WITHIN_S = 120.0

# LocalCluster ─┬─ Folder      settings, state, lists, secrets; the lock. Other processes may change all of it
#               └─ Processes   pid files and marks: whoever has the folder finds the same processes
#
# So an object keeps only the settings of a cluster that it may have to make.


class LocalCluster:
    """One folder with a cluster in it. Thread-safe as long as two calls do not concern one part.

    dir: made by `up` where it is missing. brokers: number of brokers of a new cluster.
    port_offset: added to all ports; None takes the first offset whose ports are free.
    network, tls, balancers: settings of a new cluster; see `Layout`. `up` refuses others for a known one.
    choices: servers to have beside the brokers; a known cluster keeps those that it has.
    root: setting of a new cluster; see `Layout.root`. None is $MESSAGEBUS_LOCAL_ROOT, else /.
    say: called with one line for each thing that a person should know. show: with the thing waited for now.
    """

    def __init__(
        self,
        dir: str | Path,
        brokers: int = DEFAULT_BROKERS,
        *,
        network: str | None = None,
        port_offset: int | None = None,
        tls: bool = False,
        balancers: int | None = None,
        root: Path | None = None,
        choices: Sequence[ServerChoice] = (),
        say: Callable[[str], None] = lambda line: None,
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.dir = Path(dir).resolve()
        self._folder = Folder(self.dir)
        self._processes = Processes(self._folder)
        self._new = partial(
            Layout,
            dir=self.dir,
            network=network or DEFAULT_NETWORK,
            numbers=tuple(range(1, brokers + 1)),
            tls=tls,
            balancers=balancers or 1,
        )
        self._network, self._balancers = network, balancers
        self._port_offset = port_offset
        self._tls = tls
        self._root = root and root.resolve()
        self._choices = choices
        self._say = say
        self._show = show

    # -- the whole cluster

    def up(self) -> None:
        """Start all missing parts and wait until every broker takes publishes.

        Raises LocalFault; the parts that this call started are then stopped again.
        """
        with self._folder.lock():
            known = self._folder.known()
            layout = known or self._new(root=self._root or default_root())
            stopped = self._processes.stopped(layout)
            if faults := [*self._unlike(layout, runs=len(stopped) < len(part_names(layout)))]:
                raise LocalFault(
                    f"the cluster in {self.dir} has {', '.join(faults)}; take another folder"
                )
            layout = _with_choices(layout, self._choices)
            if known and not self._processes.stopped(layout):
                self._say(f"already running in {self.dir}")
                self.wait_ready()
                return
            launched: list[str] = []
            try:
                self._bring_up(layout, launched)
            except BaseException:
                if launched:
                    self._processes.stop(self.layout, launched)
                if there := self._folder.known():
                    # A server that could not be started is not asked for by the next start, too.
                    self._folder.save(replace(there, choices=known.choices if known else ()))
                raise

    def down(self, *, wipe: bool = False) -> bool:
        """Stop everything, gracefully first. wipe: remove the data too. Does nothing when nothing runs.

        Returns whether there is a cluster; where there is none, no file is made or removed.
        """
        if not self._folder.is_used:
            process.kill(process.marked(f"{self.dir}#"))
            return False
        with self._folder.lock():
            if layout := self._folder.known():
                self._processes.stop(layout, part_names(layout))
            process.kill(process.marked(f"{self.dir}#"))
            if wipe:
                self._folder.wipe()
            return layout is not None

    def _unlike(self, layout: Layout, *, runs: bool) -> Iterator[str]:
        """Yield what was asked for and can no longer be had. runs: it has its ports already."""
        if self._tls and not layout.tls:
            yield "no TLS"
        if self._root and self._root != layout.root:
            yield f"its programs in {layout.root}"
        if self._network and self._network != layout.network:
            yield f"its addresses in {layout.network}"
        if self._balancers and self._balancers != layout.balancers:
            yield plural(layout.balancers, "balancer")
        if runs and self._port_offset not in (None, layout.offset):
            yield f"the port offset {layout.offset}"
        kept = {choice.kind: choice.persistence for choice in layout.choices}
        for choice in self._choices:
            if kept.get(choice.kind, choice.persistence) != choice.persistence:
                yield f"{choice.kind}:{kept[choice.kind]}"

    def _bring_up(self, layout: Layout, launched: list[str]) -> None:
        stopped = self._processes.stopped(layout)
        to_start = [node for node in layout.nodes if node.name in stopped]
        self.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        preflight.check(layout, to_start=len(to_start))
        claim = preflight.Claim(layout, ())
        if len(stopped) == len(part_names(layout)):
            claim = preflight.claim_ports(layout, port_offset=self._port_offset)
            if claim.layout.offset != (self._port_offset or 0):
                self._say(
                    f"default ports are in use: all ports are {claim.layout.offset} higher, "
                    f"AMQP is {claim.layout.front.amqp}"
                )
        try:
            layout = _place_servers(claim.layout, stopped)
            self._folder.write(layout)
            for name in stopped:
                launched.append(name)
                self._processes.launch(
                    part(layout, name), keep_fds=claim.fds if name == EPMD else ()
                )
        finally:
            claim.release()
        for name in stopped:
            self._show(f"waiting for {name}")
            self._processes.wait_answers(part(layout, name))
        self.wait_ready()

    # -- one part: "mb2", "mb2-agent", "haproxy" or "epmd"

    def start(self, name: str, *, agent: bool = False, wait: bool = True) -> None:
        """Start a part that does not run, or open the doors of a broker that does.

        wait: return when it answers on its port.
        """
        wanted = part(self.layout, _part_name(name, agent))
        if not self._processes.find(wanted.name):
            self._processes.kill_left(wanted.name)
            self._processes.launch(wanted)
        elif wanted.kind == "broker" and not self._processes.answers(wanted):
            with suppress(LocalFault):  # it may be in the middle of its boot, which opens them
                self.evaluate(wanted.name, doors.opened())
        if wait:
            self._processes.wait_answers(wanted)

    def stop(self, name: str, *, agent: bool = False) -> None:
        """Stop a part gracefully; with SIGKILL after its time limit."""
        self._processes.stop(self.layout, [_part_name(name, agent)])

    def kill(
        self, name: str, *, agent: bool = False, number: signal.Signals = signal.SIGKILL
    ) -> None:
        """Signal a part, SIGKILL by default, and wait until it has ended, or stands still after SIGSTOP.

        Raises LocalFault when it does not run.
        """
        wanted = part(self.layout, _part_name(name, agent))
        self._processes.send(wanted, number)

    def freeze(self, name: str, *, agent: bool = False) -> None:
        """Stop a part by SIGSTOP: it still holds its sockets and answers nothing."""
        self.kill(name, agent=agent, number=signal.SIGSTOP)

    def thaw(self, name: str, *, agent: bool = False) -> None:
        self.kill(name, agent=agent, number=signal.SIGCONT)

    def evaluate(self, name: str, expression: str) -> str:
        """Have a broker's Erlang node evaluate an expression that ends with a dot; return its value as text.

        Raises LocalFault when it cannot, or the node does not answer.
        """
        answer = self._processes.erl_call(name, expression, within_s=EVALUATED_WITHIN_S)
        if not answer.startswith("{ok, "):
            raise LocalFault(f"{name}: {answer or 'its Erlang node does not answer'}")
        return answer.removeprefix("{ok, ").removesuffix("}").strip('"')

    def ctl(self, name: str, words: Sequence[str]) -> int:
        """Run rabbitmqctl at a broker, on this terminal; return its exit code. Raises LocalFault."""
        layout = self.layout
        node = layout.node(name)
        env = broker_environment(node, epmd_port=layout.epmd_port)
        try:
            return subprocess.run(ctl_argv(layout, node, words), env=env, check=False).returncode
        except OSError as fault:
            raise LocalFault(f"rabbitmqctl: {fault.strerror or fault}") from fault

    # -- the set of nodes

    def provision(self, name: str, version: str = "") -> None:
        """Make a node's folder and enter it into the inventory; nothing is started.

        It gets the present list, which does not name it.
        version: of its RabbitMQ, a key of `roots.RELEASES`; "" for the cluster's.
        """
        if version:
            of_version(version, say=self._show)
        with self._folder.lock():
            layout = self.layout.with_node(name, version)
            self._folder.write(layout)
            layout.node(name).list_file.write_text(layout.list_file.read_text())

    def forget(self, name: str) -> None:
        """Remove a stopped node from the inventory, with its folder; a second call does no harm."""
        with self._folder.lock():
            layout = self.layout
            folder = layout.with_node(name).node(name).dir
            if self._processes.find(name) or self._processes.find(agent_part(name)):
                raise LocalFault(f"{name} still runs")
            if name in self.names:
                self._folder.save(layout.without_node(name))
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
        return self._folder.layout

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
        return files.client_env(self.layout)

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
        return self._folder.consumer_list()

    def process_of(self, name: str, *, agent: bool = False) -> Process | None:
        """Return the running process of a part."""
        return self._processes.find(_part_name(name, agent))

    def status(self) -> dict[str, Any]:
        """Return the state of all parts, as `python -m ops local status --json` prints it."""
        return cluster_status(self.layout, self.consumer_list(), self._processes.pid_file)

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
            lambda: (tuple(waiting), self._processes.movement(parts)),
            stalled_s=min(within_s, STALLED_S),
            at_most_s=within_s,
        )
        dead: dict[str, float] = {}
        while waiting := not_ready(self.layout, nodes):
            if why := patience.spent():
                raise LocalFault(f"not ready {why}: {', '.join(waiting)}")
            self._processes.look_for_the_dead(parts, dead)
            self._show(f"waiting for {', '.join(waiting)}")
            time.sleep(POLL_S)


def _with_choices(layout: Layout, wanted: Sequence[ServerChoice]) -> Layout:
    """Add the servers that are wanted and not there yet."""
    known = {choice.kind for choice in layout.choices}
    new = [choice for choice in wanted if choice.kind not in known]
    return replace(layout, choices=(*layout.choices, *new))


def _place_servers(layout: Layout, stopped: Sequence[str]) -> Layout:
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


def _part_name(name: str, agent: bool) -> str:
    return agent_part(name) if agent and not name.endswith(AGENT_SUFFIX) else name
