"""The parts of a local cluster as processes: started, watched, signalled and stopped."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from inventory.inventory import load
from lb.apply import prepare_start
from ops.errors import LocalFault
from ops.local import files, process, servers, watching
from ops.local.folder import Folder
from ops.local.layout import HERE, Layout, Server
from ops.local.parts import Part, epmd_environment, part, part_names
from ops.local.process import Process
from ops.local.roots import root_of
from ops.local.status import answers
from ops.run.waiting import Patience

# A process that ended while others wait for it may be one that somebody is starting again.
GONE_S = 5.0
POLL_S = 0.05
# RabbitMQ 3.10's management agent asks at its end who is connected, of a process that waits for that end, and
# gives up after 5 s. Ended before everything else, it has its answer at once: a stop takes 2 s and not 7.
END_STATISTICS = "gen_event:delete_handler(rabbit_event, rabbit_mgmt_db_handler, [])."
END_STATISTICS_WITHIN_S = 2.0
LOG_TAIL_LINES = 3


class Processes:
    """The processes of the cluster in one folder, known by their pid files and marks."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def find(self, name: str) -> Process | None:
        return process.find(self.pid_file(name))

    def pid_file(self, name: str) -> Path:
        return self._folder.dir / "run" / f"{name}.pid"

    def _mark(self, name: str) -> str:
        return f"{self._folder.dir}#{name}#"

    def kill_left(self, name: str) -> None:
        """Kill what an earlier process of a part has left."""
        process.kill(process.marked(self._mark(name)))

    def stopped(self, layout: Layout) -> list[str]:
        return [name for name in part_names(layout) if not self.find(name)]

    def launch(self, wanted: Part, keep_fds: Iterable[int] = ()) -> None:
        layout = self._folder.layout
        if wanted.kind == "balancer":
            inventory = load(layout.inventory)
            prepare_start(inventory.at(inventory.find_balancer(wanted.name)))
        if wanted.kind == "server":
            server = _server(layout, wanted.name)
            watching.write(layout, server, files.client_env(layout))
            servers.prepare(server)
        if wanted.kind == "broker":
            # Passwords may have changed since it was made; a broker imports its users at every boot.
            files.write_definitions(layout, layout.node(wanted.name))
        process.spawn(
            wanted.argv,
            env=wanted.env,
            log=layout.log_file(wanted.name),
            pid_file=self.pid_file(wanted.name),
            mark=self._mark(wanted.name),
            keep_fds=keep_fds,
        )

    def wait_answers(self, wanted: Part) -> None:
        patience = Patience(lambda: self.movement([wanted.name]))
        while not self.answers(wanted):
            if not self.find(wanted.name):
                raise LocalFault(
                    f"{wanted.name} ended at its start: {self._last_words(wanted.name)}"
                )
            if why := patience.spent():
                words = self._last_words(wanted.name)
                raise LocalFault(f"{wanted.name} does not answer {why}: {words}")
            time.sleep(POLL_S)

    def answers(self, wanted: Part) -> bool:
        if wanted.kind == "server":
            return servers.serves(_server(self._folder.layout, wanted.name))
        return answers(wanted.address)

    def stop(self, layout: Layout, names: Iterable[str]) -> None:
        """Stop parts in the order opposite to their start; parts of one kind together."""
        parts = [part(layout, name) for name in names]
        for kind in ("server", "balancer", "agent", "broker", "epmd"):
            self._stop_together([one for one in parts if one.kind == kind])

    def send(self, wanted: Part, number: signal.Signals) -> None:
        """Signal a part, and wait until it has ended, or stands still after SIGSTOP.

        Raises LocalFault when it does not run.
        """
        found = self.find(wanted.name)
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
            self.kill_left(wanted.name)

    def _stop_together(self, parts: list[Part]) -> None:
        running = {one.name: found for one in parts if (found := self.find(one.name))}
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
            self.kill_left(one.name)
            (self.pid_file(one.name)).unlink(missing_ok=True)

    def _end_statistics(self, name: str) -> None:
        """End a broker's management agent before the broker. Where that fails, the stop takes longer."""
        layout = self._folder.layout
        if root_of(layout, layout.node(name)) == HERE:  # newer brokers need no help
            self.erl_call(name, END_STATISTICS, within_s=END_STATISTICS_WITHIN_S)

    def movement(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """Return for each part the size of its log and the processor time that it has used."""
        layout = self._folder.layout
        found = [(layout.log_file(name), self.find(name)) for name in names]
        return [
            (log.stat().st_size if log.exists() else 0, one.cpu_ticks if one else 0)
            for log, one in found
        ]

    def look_for_the_dead(self, parts: Iterable[str], since_s: dict[str, float]) -> None:
        """Raise LocalFault for a part that has died, not by our stop. since_s: first look without it."""
        now_s = time.monotonic()
        for name in parts:
            if self.find(name) or not self.pid_file(name).exists():
                since_s.pop(name, None)
            elif now_s - since_s.setdefault(name, now_s) > GONE_S:
                raise LocalFault(f"{name} has ended: {self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        log = self._folder.layout.log_file(name)
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        words = " | ".join([line for line in lines if line][-LOG_TAIL_LINES:])
        return f"{words or 'it wrote nothing'} ({log})"

    def erl_call(self, name: str, expression: str, *, within_s: float) -> str:
        """Return what `erl_call` writes; "" where it cannot run, or takes longer.

        -R: with its default name the node would refuse it while the agent's is there.
        """
        layout = self._folder.layout
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


def _server(layout: Layout, name: str) -> Server:
    return next(server for server in layout.servers if server.name == name)
