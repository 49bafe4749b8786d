"""The balancer's times and limits: one value for each, with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Timers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Times of one balancer; `lb.lint` says which go together.

    heartbeat_s: the longest AMQP heartbeat that a client of this bus uses. 60 is RabbitMQ's own
        offer, so it covers clients that set none.
    client_s, server_s: a connection that is silent for so long is cut.
    connect_ms: for a TCP connect to a broker. It is also how long HAProxy waits, with leastconn,
        before it tries the next broker after a refused connect: keep it well under a publisher's
        own dial timeout (500 ms).
    check_ms: for the whole login of the gate check. Two late ones in a row cut a broker's sessions,
        so it must be above what a busy broker needs.
    check_inter_ms, check_fast_inter_ms: between two gate checks, and while the state is changing.
    rise, fall: checks in a row that bring a broker up, or take it down.
    agent_inter_ms: between two questions to an agent; bounds how late a drain is seen.
    list_wait_s: the longest waiting fetch that an agent grants.
    list_server_s: silence that is allowed to an agent.
    connection_lifetime_s: after this a publisher renews its connection (plus a fifth, at random).
    hard_stop_s: how long the process of before a reload may live on with its connections.
    """

    heartbeat_s: int = 60
    client_s: int = 180
    server_s: int = 180
    connect_ms: int = 250
    check_ms: int = 1_000
    check_inter_ms: int = 1_000
    check_fast_inter_ms: int = 200
    rise: int = 2
    fall: int = 2
    agent_inter_ms: int = 500
    list_wait_s: int = 60
    list_server_s: int = 75
    connection_lifetime_s: int = 600
    hard_stop_s: int = 1_800
