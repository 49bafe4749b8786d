"""Local clusters for tests: real brokers, agents and HAProxy, in folders and on addresses of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.local import process
from ops.local.cluster import LocalCluster
from tests.support.leaks import LEAKS

MakeCluster = Callable[..., LocalCluster]
# Has every cluster use TLS, for tests that dial by the cluster's own settings: moves of partitions.
TLS = bool(os.environ.get("TESTS_TLS"))
# Clusters of this process: several may run at the same time.
NUMBERS = itertools.count(1)


def end(cluster: LocalCluster) -> None:
    """End all its processes at once: an orderly stop of RabbitMQ takes 6 s, and nobody uses it any more."""
    process.kill(process.marked(f"{cluster.dir}#"))
    cluster.down()


@contextmanager
def cluster_factory(folder: Path, *, keep: Callable[[], bool]) -> Iterator[MakeCluster]:
    """Give ``make(brokers=3, up=True, tls=False, balancers=1, network="") -> LocalCluster``.

    Every cluster is ended at the end.

    keep: asked at the end whether logs and data are to stay, to look at a failure.
    Networks differ between processes that run side by side; where they do not, ports do.
    """
    made: list[LocalCluster] = []

    def make(
        brokers: int = 3,
        *,
        up: bool = True,
        tls: bool = TLS,
        balancers: int = 1,
        network: str = "",
    ) -> LocalCluster:
        number = next(NUMBERS)
        network = network or f"127.{1 + os.getpid() % 250}.{number}"
        made.append(
            LocalCluster(
                folder / f"c{number}", brokers, network=network, tls=tls, balancers=balancers
            )
        )
        if up:
            made[-1].up()
        return made[-1]

    try:
        yield make
    finally:
        for cluster in made:
            end(cluster)
            LEAKS.look_into(cluster.dir)
            if not keep():
                cluster.down(wipe=True)
