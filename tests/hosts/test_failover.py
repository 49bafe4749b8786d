"""Promise: messages that `send_safe` reported as confirmed are on two disks, whatever becomes of one host.

Two virtual hosts with DRBD's real module, the library under load, playbooks over SSH. A power-off is
SIGKILL to everything a host consists of; nothing is flushed.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from messagebus import Publisher, PublisherConfig, Queue, Replay, ReplayGap, Stream, declare
from tests.hosts.conftest import MakeLab
from tests.hosts.lab import DATA_DISK, ROOT, Host
from tests.hosts.mirrored import MOUNT, NAME, Mirrored
from tests.support.eventually import FACTOR, eventually
from tests.support.load import Load, drain, publishing
from tests.support.raw import count_messages, declare_queue, publish_to_young_queue

# Hosts are made in it, and RabbitMQ is installed.
pytestmark = pytest.mark.timeout(1800)

CONFIRMED_BEFORE = 300
# A broker boots in 12 s on an idle machine, and in 100 s beside three clusters.
AGAIN_WITHIN_S = 90.0
YOUNG = 100
# For a queue beside one that has given all its messages already.
LOST_WITHIN_S = 20.0
# A process that outlives the command that began it.
APART = "< /dev/null > /dev/null 2>&1"
WRITES = "/run/writes"
RESOURCE = f"/etc/drbd.d/{NAME}.res"
FENCE_LOG = "/var/log/messagebus-fence.log"
SYNC_NAMES = (
    '[dets:sync(T) || T <- dets:all(), filename:basename(dets:info(T, filename)) =:= "names.dets"].'
)
# The figures are of three of them (`make hosts`).
POWER_OFFS = range(1, 1 + int(os.environ.get("TESTS_POWER_OFFS", "1")))
QUEUES = [*(f"power-off-{n}" for n in POWER_OFFS), "fenced", "moved", "slow"]
STREAMED = "streamed"
# One publisher that does not move: there is nowhere to move to.
STAYS = PublisherConfig(connection_lifetime_s=600, deadline_s=120)


@pytest.fixture(scope="module")
def made(make_lab: MakeLab) -> Mirrored:
    """A mirror that was made by playbook, over disks with other data on them, and its broker."""
    found = Mirrored(make_lab("ready"))
    found.primary.run(f"mkfs.ext4 -q {DATA_DISK}")
    phrase = f"destroy ext4 on {found.primary.name}:{DATA_DISK}"
    assert phrase in found.refused("drbd", "create", NAME, "--yes")
    assert found.state(found.primary) == "down"
    found.done("drbd", "create", NAME, "--yes", "--overwrite", phrase)
    found.done("storage", "start", NAME, "--yes")
    declare(found.bus, [*map(Queue, QUEUES), Stream(STREAMED)])
    found.settle()
    return found


@pytest.fixture
def mirrored(made: Mirrored) -> Iterator[Mirrored]:
    """The mirror, whole again after each test: a test's faults do not reach the next one."""
    yield made
    made.make_whole()


def confirmed(load: Load, count: int) -> None:
    """Wait until this many more publishes are confirmed."""
    wanted = len(load.confirmed_ids()) + count
    eventually(lambda: len(load.confirmed_ids()) >= wanted, within_s=AGAIN_WITHIN_S)


def lost(mirrored: Mirrored, queue: str, ids: set[str]) -> set[str]:
    return ids - drain(mirrored.bus, f"queue:{queue}", expected=ids).keys()


@pytest.mark.guarantee("mirrored-survives-the-host")
@pytest.mark.parametrize("number", POWER_OFFS)
def test_every_confirmed_message_is_there_after_a_power_off_and_a_failover(
    mirrored: Mirrored, number: int
) -> None:
    queue = f"power-off-{number}"
    with publishing(mirrored.bus, f"queue:{queue}", publishers=1, config=STAYS) as load:
        confirmed(load, CONFIRMED_BEFORE)
        off_ns = time.monotonic_ns()
        mirrored.primary.power_off()
        dead_ns = time.monotonic_ns()
        steps = mirrored.failover()
        again = eventually(lambda: load.confirmed(since_ns=dead_ns), within_s=AGAIN_WITHIN_S)
        serving_s = (min(sent.ended_ns for sent in again) - off_ns) / 1e9
    ids = load.confirmed_ids()
    assert lost(mirrored, queue, ids) == set()
    resync_s = mirrored.come_back()
    assert "ro:Primary/Secondary ds:UpToDate/UpToDate" in mirrored.state(mirrored.primary)
    keep_figures(
        f"failover-{number}",
        {"steps_s": steps, "serving_s": serving_s, "resync_s": resync_s, "confirmed": len(ids)},
    )


@pytest.mark.guarantee("mirrored-survives-the-host")
@pytest.mark.guarantee("replay-gap-is-told")
def test_a_queue_is_safe_when_it_is_settled_and_readers_of_a_stream_are_told_what_it_lost(
    mirrored: Mirrored,
) -> None:
    """The control, a queue that nobody settled, must lose: then the test is able to see a loss.

    The result for a queue whose name alone was synced, not the file system, is written down. A stream is
    never synced: its tail goes, and the broker gives the same offsets to other messages.
    """
    stored(mirrored, YOUNG)
    hold_dirty_pages(mirrored.primary)
    publish(mirrored, "settled", settle=mirrored.settle)
    publish(mirrored, "named", settle=lambda: sync_names(mirrored.primary))
    stored(mirrored, YOUNG)
    replay = Replay(mirrored.bus, STREAMED)
    seen = {each.message_id for each in replay}
    kept = replay.checkpoint()
    # The last step: the broker writes the name of a queue by itself after a while.
    publish(mirrored, "control", settle=lambda: None)
    mirrored.primary.power_off()
    mirrored.failover()
    lost = {"settled": YOUNG - left(mirrored, "settled", within_s=AGAIN_WITHIN_S)}
    for queue in ("named", "control"):
        lost[queue] = YOUNG - left(mirrored, queue, within_s=LOST_WITHIN_S)
    keep_figures("young", {"confirmed": YOUNG, "lost": lost})
    assert {each.message_id for each in Replay(mirrored.bus, STREAMED)} < seen, "nothing was lost"
    with pytest.raises(ReplayGap):
        list(Replay(mirrored.bus, STREAMED, since=kept))
    stored(mirrored, 2 * YOUNG)  # so that the offset of the checkpoint is another message's
    with pytest.raises(ReplayGap, match="another message"):
        list(Replay(mirrored.bus, STREAMED, since=kept))
    mirrored.come_back()
    assert lost["settled"] == 0
    assert lost["control"] > 0


def stored(mirrored: Mirrored, count: int) -> None:
    with Publisher(mirrored.bus) as publisher:
        publisher.send_many(STREAMED, [b"again"] * count)


@pytest.mark.guarantee("mirror-cut-before-power-off")
def test_writes_wait_until_the_peer_is_outdated_and_then_it_is_not_promoted(
    mirrored: Mirrored,
) -> None:
    """The link is cut, then the primary loses its power: nothing that was confirmed between is lost."""
    primary, standby = mirrored.primary, mirrored.standby
    with publishing(mirrored.bus, "queue:fenced", publishers=1, config=STAYS) as load:
        confirmed(load, CONFIRMED_BEFORE)
        standby.cut()
        mirrored.until(primary, "ro:Primary/Unknown", "/Outdated")
        assert "ds:Outdated/" in mirrored.state(standby)
        confirmed(load, CONFIRMED_BEFORE)
        primary.power_off()
        standby.mend()
        refused = mirrored.refused("storage", "failover", NAME, "--dead", primary.name, "--yes")
        assert f"{primary.name} has newer data" in refused or "name it" in refused
        primary.boot()
        mirrored.done("drbd", "connect", NAME, "--yes")
        mirrored.done("storage", "start", NAME, "--yes")
        confirmed(load, 1)
    assert lost(mirrored, "fenced", load.confirmed_ids()) == set()


@pytest.mark.guarantee("mirror-cut-before-power-off")
def test_a_peer_that_is_silent_is_not_taken_for_dead(mirrored: Mirrored) -> None:
    """Both cables are cut: the handler learns nothing, and writes wait until a cable is back."""
    primary, standby = mirrored.primary, mirrored.standby
    primary.run(f"rm -f {FENCE_LOG}")
    primary.run(
        f"setsid sh -c 'sleep 4; date > {MOUNT}/alone; sync -f {MOUNT}; touch /run/went' {APART} &"
    )
    standby.cut()
    standby.cut("management")
    mirrored.until(primary, "cs:WFConnection")
    eventually(lambda: "ssh says" in fence_log(primary), within_s=AGAIN_WITHIN_S)
    assert "s-----" in mirrored.state(primary)
    assert primary.attempt("test -e /run/went")[0] == 1
    standby.mend()
    mirrored.until(primary, "cs:Connected", "ds:UpToDate/UpToDate")
    eventually(lambda: primary.attempt("test -e /run/went")[0] == 0, within_s=AGAIN_WITHIN_S)
    eventually(lambda: "connected again" in fence_log(primary), within_s=AGAIN_WITHIN_S)
    assert "answers" not in fence_log(primary)


def test_a_split_brain_is_seen_and_ended_by_naming_the_victim(mirrored: Mirrored) -> None:
    """It takes two false statements: on each side an operator swore that the other was dead."""
    primary, standby = mirrored.primary, mirrored.standby
    primary.run(f"install -D /dev/null /run/messagebus/dead/{NAME}.{standby.name}")
    primary.run(
        f"touch {WRITES}; setsid sh -c 'while test -e {WRITES}; do date > {MOUNT}/kept;"
        f" sync -f {MOUNT}; sleep 1; done; touch {WRITES}.ended' {APART} &"
    )
    primary.cut()
    primary.cut("management")
    mirrored.until(standby, "cs:WFConnection")
    mirrored.done("drbd", "promote", NAME, standby.name, "--dead", primary.name, "--yes")
    standby.run("mount /dev/drbd0 /mnt && date > /mnt/victim && umount /mnt")
    primary.mend("management")
    mirrored.until(primary, "cs:WFConnection", "/Outdated")
    primary.mend()
    eventually(
        lambda: any("cs:StandAlone" in mirrored.state(host) for host in (primary, standby)),
        within_s=AGAIN_WITHIN_S,
    )
    assert "role:Primary" in primary.run(f"drbdadm status {NAME}")  # which shows nothing wrong
    told = mirrored.ops("drbd", "status")
    assert told.returncode == 7
    assert f"SPLIT BRAIN: python -m ops drbd resolve {NAME}" in told.stdout

    primary.run(f"rm {WRITES}")
    shown = mirrored.done("drbd", "resolve", NAME, "--victim", standby.name, "--yes")
    assert "Primary/Unknown" in shown
    assert "its broker runs" in shown
    mirrored.done("drbd", "status")
    files = primary.run(f"ls {MOUNT}").split()
    assert "kept" in files
    assert "victim" not in files
    # A disk that is written to cannot be unmounted by the test after this one.
    eventually(lambda: primary.attempt(f"test -e {WRITES}.ended")[0] == 0, within_s=AGAIN_WITHIN_S)


def test_the_two_disks_are_compared_and_alike(mirrored: Mirrored) -> None:
    mirrored.done("drbd", "rate", NAME, "200M", "--yes")
    assert "all alike" in mirrored.done("drbd", "verify", NAME, "--yes")


def test_a_broker_is_moved_in_good_order_and_nothing_is_lost(mirrored: Mirrored) -> None:
    with publishing(mirrored.bus, "queue:moved", publishers=1, config=STAYS) as load:
        confirmed(load, CONFIRMED_BEFORE)
        moved_ns = time.monotonic_ns()
        mirrored.done("storage", "failback", NAME, "--yes")
        eventually(lambda: load.confirmed(since_ns=moved_ns), within_s=AGAIN_WITHIN_S)
    keep_figures("failback", {"steps_s": mirrored.steps("storage failback")})
    assert lost(mirrored, "moved", load.confirmed_ids()) == set()


@pytest.mark.guarantee("mirrored-survives-the-host")
def test_control_with_protocol_a_on_a_slow_link_the_same_test_finds_lost_messages(
    made: Mirrored,
) -> None:
    """The mirror is of no use afterwards: it comes last."""
    mirrored = made
    for host in (mirrored.primary, mirrored.standby):
        host.run(
            f"sed -i 's/protocol .*/protocol A;/; s/fencing .*/fencing dont-care;/' {RESOURCE}"
        )
        host.run(f"drbdadm disk-options --fencing=dont-care {NAME}")
    for host in (mirrored.primary, mirrored.standby):
        host.run(f"drbdadm adjust {NAME}")
    mirrored.until(mirrored.primary, "cs:Connected", "UpToDate/UpToDate A")
    mirrored.primary.run("tc qdisc replace dev eth1 root netem delay 400ms limit 100000")
    with publishing(mirrored.bus, "queue:slow", publishers=1, config=STAYS) as load:
        confirmed(load, CONFIRMED_BEFORE)
        mirrored.primary.power_off()
        before = load.confirmed_ids()
        mirrored.failover()
    assert lost(mirrored, "slow", before) != set()


def fence_log(host: Host) -> str:
    """Return the handler's log; "" before its first line."""
    return host.run(f"cat {FENCE_LOG} 2> /dev/null || true")


def publish(mirrored: Mirrored, queue: str, *, settle: Callable[[], None]) -> None:
    """Declare a queue, settle it in some way, and publish at once; all is confirmed."""
    user, password = "guest", mirrored.bus.password
    declare_queue(mirrored.bus.broker, user, password, queue=queue)
    settle()
    confirmed = publish_to_young_queue(
        mirrored.bus.broker, user, password, queue=queue, count=YOUNG
    )
    assert confirmed == YOUNG


def left(mirrored: Mirrored, queue: str, *, within_s: float) -> int:
    """Count messages that come out of a queue; none of one that lost its name, and does not answer."""
    return count_messages(
        mirrored.bus.broker,
        "guest",
        mirrored.bus.password,
        queue=queue,
        wanted=YOUNG,
        within_s=within_s * FACTOR,
    )


def hold_dirty_pages(host: Host) -> None:
    """Keep the kernel from writing on its own until the next boot: what is on disk, somebody synced.

    Else a busy machine takes longer to publish than the kernel takes to write, and the control loses nothing.
    """
    host.run("sysctl -q vm.dirty_writeback_centisecs=0 vm.dirty_expire_centisecs=360000")
    host.run(f"mount -o remount,commit=3600 {MOUNT}")


def sync_names(host: Host) -> None:
    """Sync the table of names alone, not the file system, as the agent does first."""
    said = host.run(
        f"echo '{SYNC_NAMES}' | HOME={MOUNT} runuser -u rabbitmq -- erl_call -R -n rabbit@localhost -e"
    )
    assert re.fullmatch(r"\{ok, ?\[ok(, ?ok)*\]\}", said.strip()), said


def keep_figures(name: str, figures: dict[str, Any]) -> None:
    """Keep figures as JSON in out/hosts/ of the checkout, with how busy this machine was."""
    folder = ROOT / "out" / "hosts"
    folder.mkdir(parents=True, exist_ok=True)
    figures = {**figures, "load_1_min": round(os.getloadavg()[0], 1)}
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
