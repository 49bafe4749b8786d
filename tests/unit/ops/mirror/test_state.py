"""DRBD 8.4's own output in the states of a mirror, and the permitted acts in each."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.mirror.state import (
    DOWN,
    Allowed,
    Alone,
    Generations,
    Refused,
    Relation,
    Status,
    UnexpectedOutput,
    is_split,
    may_promote,
    parse_events,
    parse_generations,
    relation,
)
from tests.support.examples import examples
from tests.support.mirrors import recorded_outputs

OUTPUTS = Path(__file__).with_name("drbd_outputs")
EVENTS = "drbdsetup events2 --now r0"
RECORDED = sorted(path for path in OUTPUTS.glob("*.txt") if path.name[0].isdigit())


def said(file: Path) -> dict[str, str]:
    """Return command -> its standard output, of one recorded state."""
    return {command: written for command, (_, written) in recorded_outputs(file).items()}


def recorded(name: str) -> Status:
    """Return a recorded state. name: number, and the host where both were recorded: ``07 A``."""
    number, _, host = name.partition(" ")
    (file,) = OUTPUTS.glob(f"{number}_*.{host or 'A'}.txt")
    outputs = said(file)
    return parse_events(outputs[EVENTS], parse_generations(outputs["drbdadm get-gi r0"]))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_the_state_by_events_is_the_one_that_the_kernel_shows_elsewhere(file: Path) -> None:
    """The oracle is /proc/drbd, which nothing of ours reads, and which speaks 8.4's own words."""
    outputs = said(file)
    status = parse_events(outputs[EVENTS])
    line = re.search(r" cs:(\S+) ro:(\S+) ds:(\S+) .{2}(\S)", outputs["cat /proc/drbd"])
    if line is None:
        assert status == Status(link=DOWN)
        return
    assert status.link == line[1] == outputs["drbdadm cstate r0"].strip()
    assert f"{status.role}/{status.peer_role}" == line[2]
    assert f"{status.disk}/{status.peer_disk}" == line[3] == outputs["drbdadm dstate r0"].strip()
    assert bool(status.frozen) == (line[4] == "s")


def test_there_is_a_record_of_every_state_that_is_told_apart() -> None:
    assert len(RECORDED) == 45
    assert {recorded(f"{path.name.split('_')[0]} {path.stem[-1]}").link for path in RECORDED} == {
        *("Connected", "WFConnection", "StandAlone", "SyncSource", "SyncTarget"),
        *("PausedSyncS", "PausedSyncT", "VerifyS", "VerifyT", DOWN),
    }


def test_statistics_tell_how_much_differs() -> None:
    lines = (OUTPUTS / "events2_stream_linkcut_statistics.A.txt").read_text().splitlines()
    now = [line.split(" ", 1)[1] for line in lines if " exists " in line]
    status = parse_events("\n".join(now))
    assert (status.size_kib, status.out_of_sync_kib, status.done_percent) == (49112, 0, 100.0)
    half = [line.replace("out-of-sync:0", "out-of-sync:24556") for line in now]
    assert parse_events("\n".join(half)).done_percent == 50.0


@pytest.mark.parametrize("text", ["exists resource name", "exists resource role", "x:y exists z"])
def test_words_that_are_no_events_are_refused_or_nothing(text: str) -> None:
    if "resource" in text:
        with pytest.raises(UnexpectedOutput):
            parse_events(text)
    else:
        assert parse_events(text).link == DOWN


def test_two_peers_are_not_of_8_4_and_refused() -> None:
    twice = "exists resource name:r0 role:Primary suspended:no\n" + 2 * (
        "exists connection name:r0 peer-node-id:1 connection:Connected role:Secondary\n"
    )
    with pytest.raises(UnexpectedOutput, match="more than one connection"):
        parse_events(twice)


@pytest.mark.parametrize("text", ["0123", "drbdadm: unknown", "1:2:3:4:1:1:1:1:0:0:0"])
def test_what_is_no_generation_is_refused(text: str) -> None:
    with pytest.raises(UnexpectedOutput):
        parse_generations(text)


def test_a_disk_without_metadata_has_no_generations() -> None:
    assert parse_generations("") is None
    assert parse_generations("\n") is None


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ("06 A", "06 B", Relation.SAME),
        ("07 A", "07 B", Relation.AHEAD),
        ("07 B", "07 A", Relation.BEHIND),
        ("10 A", "10 B", Relation.AHEAD),
        ("10 A", "10b B", Relation.SPLIT),
        ("11 A", "11 B", Relation.SPLIT),
        ("12 A", "12 B", Relation.SPLIT),
        ("12b A", "12b B", Relation.SPLIT),
        ("13 A", "13 B", Relation.SAME),
        ("19 A", "20 B", Relation.SAME),
        ("26 A", "26 B", Relation.AHEAD),
        ("22 A", "06 A", Relation.FOREIGN),
        ("02 A", "06 A", Relation.EMPTY),
    ],
)
def test_generations_tell_who_has_newer_data(here: str, there: str, expected: Relation) -> None:
    mine, theirs = recorded(here).generations, recorded(there).generations
    assert mine is not None
    assert theirs is not None
    assert relation(mine, theirs) is expected


@pytest.mark.parametrize(
    ("state", "split"),
    [("06", False), ("07", False), ("11", True), ("12", True), ("12b", True), ("13", False)],
)
def test_a_split_brain_is_seen_before_and_after_the_two_have_met(state: str, split: bool) -> None:
    """`drbdadm status` shows nothing in 12 and 12b, and in 11 the two have not met."""
    assert is_split({"A": recorded(f"{state} A"), "B": recorded(f"{state} B")}) is split


def test_two_that_copy_from_each_other_are_not_split_whatever_their_generations_look_like() -> None:
    """The copying side goes by a generation of its own until it has all."""
    here, there = recorded("08 A"), recorded("09 B")
    assert here.generations is not None
    assert there.generations is not None
    halfway = dataclasses.replace(there.generations, current="F" * 15 + "0", base="")
    assert relation(here.generations, halfway) is Relation.SPLIT
    assert there.link == "SyncTarget"
    assert not is_split({"A": here, "B": dataclasses.replace(there, generations=halfway)})


def test_one_side_alone_is_no_split_brain() -> None:
    assert not is_split({"A": recorded("12 A")})


def test_whole_is_only_what_has_two_good_copies_that_follow_each_other() -> None:
    whole = {"06", "13", "17", "19", "25"}
    for path in RECORDED:
        number, host = path.name.split("_")[0], path.stem[-1]
        assert recorded(f"{number} {host}").is_whole == (number in whole), path.name


# State and host -> may it be promoted: peer not asked, peer asked, peer dead, given up and dead.
PROMOTION = {
    "01 A": "no no no no",  # down
    "02 A": "no no no no",  # inconsistent, alone
    "03 A": "no no no no",  # never had data
    "04 A": "yes yes yes yes",  # is primary
    "04 B": "no no no no",  # being copied to
    "05 B": "no no no no",
    "06 A": "yes yes yes yes",
    "06 B": "no no no no",  # the peer is primary
    "07 B": "no no yes yes",  # cut; asked, A says that it is primary
    "10 B": "no no no yes",  # disconnected by hand: A may have gone on, and did
    "14 A": "yes yes yes yes",
    "14 B": "no no no no",  # diskless
    "16 A": "yes yes yes yes",
    "16 B": "no no no no",
    "17 B": "no no no no",
    "19 A": "yes yes yes yes",
    "20 A": "no yes yes yes",  # B is down and has the same
    "22 A": "no no no yes",  # outdated
    "23 B": "no no yes yes",  # A is frozen: nothing was confirmed since
    "26 A": "yes yes yes yes",
    "26 B": "no no no yes",  # A outdated it, and went on
}
PEER_OF = {"A": "B", "B": "A"}


@pytest.mark.parametrize(("state", "expected"), PROMOTION.items())
def test_promotion_in_every_state(state: str, expected: str) -> None:
    number, host = state.split()
    here = recorded(state)
    others = list(OUTPUTS.glob(f"{number}_*.{PEER_OF[host]}.txt"))
    there = recorded(f"{number} {PEER_OF[host]}") if others else None
    answers = (
        may_promote(here, None, peer="mbB"),
        may_promote(here, there, peer="mbB"),
        may_promote(here, None, peer="mbB", peer_is_dead=True),
        may_promote(here, None, peer="mbB", peer_is_dead=True, given_up="mbB"),
    )
    assert " ".join("yes" if answer else "no" for answer in answers) == expected
    assert all(isinstance(answer, Allowed) or "\n" not in answer.reason for answer in answers)


def test_a_split_brain_is_resolved_and_not_promoted() -> None:
    here = dataclasses.replace(recorded("10b B"), role="Secondary")
    there = dataclasses.replace(recorded("10 A"), role="Secondary")
    refused = may_promote(here, there, peer="mbA")
    assert isinstance(refused, Refused)
    assert "split brain" in refused.reason
    assert may_promote(here, there, peer="mbA", given_up="mbA")


@pytest.mark.parametrize("state", ["00 A", "01 A"])
def test_a_peer_that_answers_and_tells_nothing_of_its_data_proves_nothing(state: str) -> None:
    refused = may_promote(recorded("20 A"), recorded(state), peer="mbB")
    assert isinstance(refused, Refused)
    assert "nothing is known of its data" in refused.reason
    assert may_promote(recorded("20 A"), recorded(state), peer="mbB", given_up="mbB")
    assert may_promote(recorded("26 A"), recorded(state), peer="mbB")  # it knows what it is


def test_a_silent_peer_that_went_on_alone_is_ahead_of_whoever_lacks_what_it_wrote() -> None:
    """Without that word, the host would be promoted: it was up to date when the peer was lost."""
    here = recorded("07 B")
    assert here.generations
    since = Alone(host="mbA", since="2026-01-02 03:04 UTC", generation="1" * 16)
    assert may_promote(here, None, peer="mbA", peer_is_dead=True)
    for alone in (since, dataclasses.replace(since, generation="")):
        refused = may_promote(here, None, peer="mbA", peer_is_dead=True, alone=alone)
        assert isinstance(refused, Refused)
        assert "mbA went on alone on 2026-01-02" in refused.reason
        assert may_promote(here, None, peer="mbA", peer_is_dead=True, given_up="mbA", alone=alone)
    frozen = dataclasses.replace(here, role="Primary")
    assert not may_promote(frozen, None, peer="mbA", alone=since)
    mine = dataclasses.replace(since, host="mbB")
    copied = dataclasses.replace(since, generation=here.generations.current)
    for alone in (mine, copied):
        assert may_promote(here, None, peer="mbA", peer_is_dead=True, alone=alone)


def test_of_two_primaries_none_is_promoted() -> None:
    refused = may_promote(recorded("11 A"), recorded("11 B"), peer="mbB")
    assert isinstance(refused, Refused)
    assert "resolve the split brain" in refused.reason


def test_another_name_gives_nothing_up() -> None:
    assert not may_promote(recorded("26 B"), None, peer="mbA", peer_is_dead=True, given_up="mbB")


def test_newer_data_of_a_peer_that_answers_are_not_passed_over() -> None:
    there = dataclasses.replace(recorded("10 A"), role="Secondary")
    refused = may_promote(recorded("10 B"), there, peer="mbA", peer_is_dead=True)
    assert isinstance(refused, Refused)
    assert "newer data" in refused.reason


@pytest.mark.parametrize("link", ["WFReportParams", "NetworkFailure", "WFBitMapT", "Unconnected"])
def test_nothing_is_decided_while_the_connection_changes(link: str) -> None:
    here = dataclasses.replace(recorded("07 B"), link=link)
    assert not may_promote(here, None, peer="mbA", peer_is_dead=True, given_up="mbA")


def test_a_consistent_disk_after_a_boot_is_not_known_to_be_the_newest() -> None:
    here = dataclasses.replace(recorded("07 B"), disk="Consistent")
    assert not may_promote(here, None, peer="mbA", peer_is_dead=True)
    assert may_promote(here, None, peer="mbA", peer_is_dead=True, given_up="mbA")


@dataclasses.dataclass
class Side:
    """Host of the model: the writes on its disk, and DRBD's knowledge there."""

    writes: set[int] = dataclasses.field(default_factory=set)
    history: list[str] = dataclasses.field(default_factory=lambda: ["G0"])
    base: str = ""
    disk: str = "UpToDate"
    peer_disk: str = "UpToDate"
    primary: bool = False
    on: bool = True


class Pair:
    """Two disks and a cable, with fencing as our handler does it; the model knows every confirmed write."""

    def __init__(self) -> None:
        self.sides = {"A": Side(primary=True), "B": Side()}
        self.confirmed: set[int] = set()
        self.cable, self.connected = True, True
        self._numbers = itertools.count(1)

    def write(self) -> None:
        for name, side in self.sides.items():
            other = self.sides[PEER_OF[name]]
            if not (side.on and side.primary):
                continue
            number = next(self._numbers)
            if self.connected:
                side.writes.add(number)
                other.writes.add(number)
            elif not self._outdates(side, other):
                continue  # frozen
            else:
                self._goes_on_alone(side)
                side.writes.add(number)
            self.confirmed.add(number)

    def _outdates(self, side: Side, other: Side) -> bool:
        """Run the handler: over the second network, or by an operator who looked and saw it dead."""
        if side.peer_disk != "Outdated":
            if other.on:
                if other.primary:
                    return False
                other.disk = "Outdated"
            side.peer_disk = "Outdated"
        return True

    def _goes_on_alone(self, side: Side) -> None:
        if not side.base:
            side.base = side.history[0]
            side.history.insert(0, f"G{next(self._numbers)}")

    def cut(self) -> None:
        self.cable = False
        self._part()

    def _part(self) -> None:
        if self.connected:
            self.connected = False
            for side in self.sides.values():
                side.peer_disk = "DUnknown"

    def mend(self) -> None:
        self.cable = True
        ahead = [side for side in self.sides.values() if side.base]
        if not all(side.on for side in self.sides.values()) or len(ahead) == 2:
            return
        source = ahead[0] if ahead else self.sides["A"]
        for side in self.sides.values():
            side.writes, side.history = set(source.writes), list(source.history)
            side.base, side.disk, side.peer_disk = "", "UpToDate", "UpToDate"
        self.connected = True

    def power_off(self, name: str) -> None:
        self._part()
        self.sides[name].on = self.sides[name].primary = False

    def boot(self, name: str) -> None:
        side = self.sides[name]
        if not side.on:
            side.on, side.peer_disk = True, "DUnknown"
            side.disk = "Consistent" if side.disk == "UpToDate" else side.disk
            if self.cable:
                self.mend()

    def status(self, name: str) -> Status:
        side, other = self.sides[name], self.sides[PEER_OF[name]]
        role = {True: "Primary", False: "Secondary"}
        return Status(
            link="Connected" if self.connected else "WFConnection",
            role=role[side.primary],
            peer_role=role[other.primary] if self.connected else "Unknown",
            disk=side.disk,
            peer_disk=side.peer_disk,
            generations=Generations(side.history[0], side.base, tuple(side.history[1:]), True),
        )

    def promote(self, name: str, *, asks: bool) -> None:
        """Promote as the playbook does: by the peer's word if possible, else by the truth about its death."""
        side, peer = self.sides[name], PEER_OF[name]
        other = self.sides[peer]
        if not side.on:
            return
        there = self.status(peer) if asks and other.on else None
        if may_promote(self.status(name), there, peer=peer, peer_is_dead=not other.on):
            side.primary = True


EVENTS_OF_STORY = "write write cut mend off-A off-B boot-A boot-B up-A up-B ask-A ask-B down-A"


@pytest.mark.guarantee("mirror-cut-before-power-off")
@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(EVENTS_OF_STORY.split(" ")), min_size=4, max_size=24))
def test_whoever_is_promoted_has_every_write_that_was_confirmed(story: list[str]) -> None:
    pair = Pair()
    for event in story:
        _play(pair, event)
        primaries = [side for side in pair.sides.values() if side.primary]
        assert len(primaries) < 2
        for side in primaries:
            assert pair.confirmed <= side.writes


def _play(pair: Pair, event: str) -> None:
    what, _, name = event.partition("-")
    match what:
        case "write":
            pair.write()
        case "cut":
            pair.cut()
        case "mend":
            pair.mend()
        case "off":
            pair.power_off(name)
        case "boot":
            pair.boot(name)
        case "down":
            pair.sides[name].primary = False
        case _:
            pair.promote(name, asks=what == "ask")


def test_an_outdated_disk_is_not_promoted_because_the_peer_has_the_same() -> None:
    here = dataclasses.replace(recorded("20 A"), disk="Outdated")
    assert not may_promote(here, recorded("20 B"), peer="mbB")


def test_a_status_is_told_in_one_line() -> None:
    assert str(recorded("20 B")) == "down"
    assert str(recorded("06 A")) == "Connected  Primary/Secondary  UpToDate/UpToDate"
    assert str(recorded("23 A")).endswith("UpToDate/DUnknown  FROZEN (fencing)")
    copying = dataclasses.replace(recorded("04 A"), size_kib=100, out_of_sync_kib=60)
    assert str(copying).endswith("40 % done")
    differing = dataclasses.replace(recorded("06 A"), size_kib=100, out_of_sync_kib=60)
    assert str(differing).endswith("60 KiB differ")
