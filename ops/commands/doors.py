"""A broker's doors, shut before the last look into it: expressions that its own Erlang node evaluates.

Addresses and SSH hosts may be those of another broker, and statistics show the past. So the node itself says
who it is, stops listening, hangs up, and counts its messages, in one evaluation: nothing can be confirmed
between that count and its end. Clients come through TCP alone, whatever their protocol; Erlang's own
distribution, by which the node is asked, stays. The next start of the node opens the doors. Pure.
"""

from __future__ import annotations

from messagebus.topology import GATE

STREAMS = "mb.stream/"
"""Prefix of queues whose messages hold nobody up: streams keep what was read."""

_NAMED = """
Own = rabbit_nodes:cluster_name(),
Own =:= <<"{address}">> orelse exit({{this_broker_is, binary_to_list(Own), not_, "{address}"}})"""
_DOORS = "Doors = maps:keys(ranch:info())"
# Looks for connections inside the node, every 100 ms, and those of them that wait for connections to end.
_TRIES, _OF_ENDING = 100, 20
_RESUME = "[ranch:resume_listener(Door) || Door <- Doors]"
# Connections of management's and MQTT's users inside the node end a moment after their TCP connections. One
# whose user was hung up before it was linked to it stays for ever; it has no channel, and is hung up, too.
# What is left then are shovels and federation, which publish without any door.
_SHUT = """
Unused = fun() -> rabbit_direct:list() -- [Used || Channel <- rabbit_channel:list_local(),
    [{{connection, Used}}] <- [(catch rabbit_channel:info(Channel, [connection]))]] end,
Ended = fun Ended(0) -> exit({{shovels_or_federation_publish_here, length(rabbit_direct:list())}});
            Ended(Left) -> rabbit_direct:list() =:= [] orelse begin
                Left > {patience} orelse [exit(Pid, kill) || Pid <- Unused()],
                timer:sleep(100), Ended(Left - 1) end end,
Held = fun(Queue) ->
    case amqqueue:get_type(Queue) of
        rabbit_quorum_queue ->
            {{ok, {{_, Count}}, _}} =
                ra:leader_query(amqqueue:get_pid(Queue), {{rabbit_fifo, query_messages_total, []}}),
            Count;
        rabbit_mqtt_qos0_queue -> 0;
        _ -> [{{messages, Count}}] = rabbit_amqqueue:info(Queue, [messages]), Count
    end end,
try
    [ok = ranch:suspend_listener(Door) || Door <- Doors],
    [exit(Pid, kill) || Door <- Doors, Pid <- ranch:procs(Door, connections)],
    Ended({tries}),
    Queues = [{{Name, Queue}} || Queue <- rabbit_amqqueue:list(),
        amqqueue:get_exclusive_owner(Queue) =:= none,
        {{resource, _, queue, Name}} <- [amqqueue:get_name(Queue)],
        Name =/= <<"{gate}">>, string:prefix(Name, "{streams}") =:= nomatch],
    Left = [{{binary_to_list(Name), Count}} ||
        {{Name, Queue}} <- Queues, Count <- [Held(Queue)], Count =/= 0],
    Left =:= [] orelse exit({{messages_are_left, lists:sublist(Left, 5)}}),
    lists:flatten(
        io_lib:format("its doors are shut, and it counts 0 messages in ~b queues", [length(Queues)]))
catch
    Class:Reason -> {resume}, erlang:raise(Class, Reason, [])
end"""


def named(address: str) -> str:
    """Return the expression that fails unless the node calls itself this ``host:port``."""
    return _of(_NAMED.format(address=address), "binary_to_list(Own)")


def opened() -> str:
    """Return the expression that makes the node listen again, where its doors were shut."""
    return _of(_DOORS, _RESUME, "ok")


def shut(address: str) -> str:
    """Return the expression that shuts the doors of the node of this name, which must be empty.

    Its value is a sentence. It fails, and the doors are open again, where the node has another name, holds a
    message, cannot count one queue, or is published to from inside.
    """
    body = _SHUT.format(
        gate=GATE, streams=STREAMS, resume=_RESUME, tries=_TRIES, patience=_TRIES - _OF_ENDING
    )
    return _of(_NAMED.format(address=address), _DOORS, body)


def _of(*expressions: str) -> str:
    """Join expressions as a shell of Erlang reads them, on one line."""
    return " ".join(",".join(expressions).split()) + "."
