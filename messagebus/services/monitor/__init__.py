"""The monitor: one live page about all brokers of a bus.

It holds no truth: end it and start it anywhere. It asks agents and balancers over HTTP.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

from messagebus import BusConfig, ConfigError
from messagebus.http.connections import Bounds, connections_below_descriptors
from messagebus.http.listening import listen
from messagebus.http.server import STOP_TIMEOUT_S, Server
from messagebus.observing.ask import Asker
from messagebus.services.monitor.config import LISTEN, MonitorConfig
from messagebus.services.monitor.eventlog import EventLog
from messagebus.services.monitor.people import hash_password
from messagebus.services.monitor.watch import Watch
from messagebus.services.monitor.web import Monitor
from messagebus.terminal import say

__all__ = ["Monitor", "MonitorConfig", "hash_password", "run", "serve"]

log = logging.getLogger("messagebus.monitor")

CONNECTIONS_MAX = 2_000
REREAD_EVERY_S = 2.0
# 64 brokers of 500 names are 100,000 values that live on and make no cycles: by the own thresholds of Python
# all of them were walked about every look, for half of the CPU time.
GC_THRESHOLDS = 20_000, 20, 50


def run(config_path: str | Path | None = None, *, listen: str | None = None) -> int:
    """Serve the page until SIGTERM or SIGINT. Without a file the bus's own settings count, on loopback.

    listen: ``host:port`` instead of the file's.

    Returns 0 after an orderly end. Raises ConfigError when a setting or a port is wrong.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    if config_path is None:
        config = MonitorConfig(bus=BusConfig.from_env(os.environ), listen=listen or LISTEN)
    else:
        config = MonitorConfig.from_file(config_path)
        config = replace(config, listen=listen) if listen else config
    asyncio.run(serve(config))
    return 0


async def serve(config: MonitorConfig) -> None:
    """Serve until a signal comes. Prints the address of the page. Raises ConfigError for a port in use."""
    state = Path(config.state_dir, "events.sqlite") if config.state_dir else ""
    events = EventLog(str(state))
    watch = Watch(
        Asker(config.bus, balancers=config.balancers, prometheus=config.prometheus), events
    )
    monitor = Monitor(config, watch)
    try:
        listener = listen("listen", config.listen)
    except ConfigError:
        events.close()
        raise
    bounds = Bounds(connections_max=connections_below_descriptors(CONNECTIONS_MAX))
    server = Server(monitor.application(), listener, bounds)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    watching = asyncio.create_task(watch.run())
    watching.add_done_callback(lambda _task: server.stop())
    rereading = asyncio.create_task(_reread(monitor))
    try:
        await watch.next(0, within_s=STOP_TIMEOUT_S)
        say(f"the page of the bus: http://{config.listen}/", err=True)
        await server.run()
    finally:
        failed = watching.done()
        await monitor.actions.close()
        watching.cancel()
        rereading.cancel()
        await asyncio.gather(watching, rereading, return_exceptions=True)
        listener.close()
        events.close()
    if failed and not watching.cancelled() and (why := watching.exception()):
        raise why


async def _reread(monitor: Monitor) -> None:
    """Look for another settings file, until cancelled."""
    seen = _mark(monitor.config.path)
    while monitor.config.path:
        await asyncio.sleep(REREAD_EVERY_S)
        if (mark := _mark(monitor.config.path)) != seen:
            seen = mark
            try:
                left = monitor.take(
                    await asyncio.to_thread(MonitorConfig.from_file, monitor.config.path)
                )
            except ConfigError as fault:
                left = f"the last ones are kept: {fault}"
            log.warning("settings changed reason=%r", left) if left else log.info("people changed")


def _mark(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
