"""Ingest of the event files of a run into the lake: typed, checked, in partitions by date, run and file.

The unit is the file. A file that is unchanged since it was read is left alone. One that grew is read
again and its earlier rows are replaced, a deleted one keeps its rows, a renamed one moves them. A
file is also read again when its host's clock is another one, or when the manifest names other topics and
some of its lines belonged to none. So ingesting twice changes nothing, by steps or at once, and a daily
ingest of a run that goes on reads only new files.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from messagebus.recording.events import EVENTS
from messagebus.recording.manifest import Manifest, RunInvalid, read_manifest
from spark.lake.events import (
    FOREIGN,
    counted,
    line_counts,
    quarantined,
    rows_of,
    schema_of,
)
from spark.lake.files import ANCHOR, EventFile, Files, anchor_noted, find_files
from spark.lake.manifests import manifest_of
from spark.lake.tables import DATE, RUN, SOURCE, Lake, partitions_of

QUARANTINE = "quarantine"
NOTE, LOOKS = "ingested", "looks"
SEVERAL = "several at once"
QUARANTINE_SCHEMA = StructType(
    [StructField(name, StringType()) for name in ("kind", "reason", "value", DATE, RUN, SOURCE)]
)
BY = (DATE, RUN, SOURCE)


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of a folder that are to be read. new: those that are not in the lake as they are.

    moved: sources whose content now has another name.
    """

    folder: Path
    manifest: Manifest
    files: Files
    new: tuple[EventFile, ...]
    moved: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """The cost of the whole run, as `EventFile.weight`."""
        return sum(file.weight for file in self.files.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A run in the lake. files: source -> note of each file. read: the sources that were read now.

    skipped, missing, clock_spread_ns, clock_doubt_ns: as in `files.Files`.
    """

    manifest: Manifest
    files: Mapping[str, Mapping[str, Any]]
    read: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    clock_spread_ns: int = 0
    clock_doubt_ns: int = 0

    @property
    def clocks(self) -> int:
        """The number of clocks by which the rows were taken, as far as files say."""
        offsets = {
            file["anchor"]["offset_ns"] for file in self.files.values() if file.get("anchor")
        }
        return max(1, len(offsets))

    @property
    def quiet(self) -> list[tuple[str, str]]:
        """The pairs (topic, subscription) of the manifest that received nothing, as far as files tell."""
        files = [file for file in self.files.values() if file["kind"] == "delivered"]
        if any("pairs" not in file for file in files):
            return []
        had = {(topic, name) for file in files for topic, name in file["pairs"]}
        return [pair for pair in self.manifest.pairs if pair not in had]

    @property
    def weight(self) -> int:
        """The cost of the whole run, as `EventFile.weight`."""
        return sum(int(file["weight"]) for file in self.files.values())

    @property
    def bad(self) -> int:
        return sum(sum(file["bad"].values()) for file in self.files.values())

    def total(self, kind: str, what: str) -> int:
        """Return the sum of lines, anchors or good over all files of a kind."""
        return sum(int(file[what]) for file in self.files.values() if file["kind"] == kind)

    def reasons(self) -> dict[str, int]:
        """Return reason -> number of bad lines."""
        found: Counter[str] = Counter()
        for file in self.files.values():
            found.update(file["bad"])
        return dict(found)


def plan(folder: Path, lake: Lake) -> Plan:
    """Find the new files of a run's folder; needs no session.

    Raises RunInvalid: no run, nothing in it, or another run of that name.
    """
    told, _values = manifest_of(folder)
    manifest = told.on_wall_clock()
    _refuse_namesake(lake, folder, manifest)
    noted = lake.note(manifest.run_id, NOTE)
    known: dict[str, Any] = noted.get("files", {})
    files = find_files(folder, manifest, known, lake.note(manifest.run_id, LOOKS))
    named = _named(manifest)
    before = noted.get("named", named)
    new = [
        file
        for file in files.used
        if not _is_as_it_was(file, known.get(file.source, {}), before, named)
    ]
    used = {file.source for file in files.used}
    contents = {(file.kind, file.sha256) for file in new}
    moved = [
        source
        for source, file in known.items()
        if source not in used and (file["kind"], file["sha256"]) in contents
    ]
    return Plan(folder, manifest, files, tuple(new), tuple(moved))


def _is_as_it_was(
    file: EventFile, noted: Mapping[str, Any], before: list[list[str]], named: list[list[str]]
) -> bool:
    """Return whether a file must not be read again. before, named: `_named` when it was read, and now."""
    if noted.get("sha256") != file.sha256:
        return False
    if noted.get("offset_ns", file.offset_ns) != file.offset_ns:
        return False
    was_foreign = bool(noted["bad"].get(FOREIGN))
    return before == named or not (was_foreign or any(each not in named for each in before))


def _named(manifest: Manifest) -> list[list[str]]:
    """Return the names that rows may have: topics, and topics with a subscription."""
    return [*([topic] for topic in sorted(manifest.topics)), *map(list, manifest.pairs)]


def ingest(session: SparkSession, lake: Lake, plan: Plan) -> Ingested:
    """Read the new files.

    Raises RunInvalid when a file changes while it is read, or another ingest of the run went on meanwhile:
    both replace the same partitions, and no lock is known to every file system.
    """
    manifest, files, new = plan.manifest, plan.files, plan.new
    before = lake.note(manifest.run_id, NOTE)
    known, token = dict(before.get("files", {})), secrets.token_hex(8)
    if new:
        # Until it ends, the run in the lake is neither the old nor the new one.
        lake.take_note(manifest.run_id, NOTE, before | {"reading": token})
    gone = [known.pop(source) | {"source": source} for source in plan.moved]
    try:
        known |= _read_all(session, lake, plan, gone)
    except Exception as fault:
        # Two that replace the same files at once make each other fail.
        _refuse_another(lake, plan, token, fault)
        raise
    _refuse_another(lake, plan, token)
    noted = {
        "folder": str(plan.folder.resolve()),
        "files": known,
        "skipped": files.skipped,
        "missing": files.missing,
        "clock_spread_ns": files.clock_spread_ns,
        "clock_doubt_ns": files.clock_doubt_ns,
        "named": _named(manifest),
    }
    _manifest, values = manifest_of(plan.folder)
    lake.take_note(manifest.run_id, "manifest", values)
    lake.take_note(manifest.run_id, LOOKS, dict(files.looks))
    lake.take_note(manifest.run_id, NOTE, noted)
    return _ingested(manifest, noted, tuple(file.source for file in new))


def _read_all(
    session: SparkSession, lake: Lake, plan: Plan, gone: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Read the new files of all kinds at once. Returns source -> its note. gone: files that they replace."""
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(len(EVENTS)) as pool:
        reading = [
            pool.submit(
                _read,
                session,
                lake,
                plan.manifest,
                kind,
                [file for file in plan.new if file.kind == kind],
                [file["source"] for file in gone if file["kind"] == kind],
            )
            for kind in EVENTS
            if any(file.kind == kind for file in plan.new)
        ]
        for each in reading:
            found |= each.result()
    return found


def _refuse_another(lake: Lake, plan: Plan, token: str, fault: BaseException | None = None) -> None:
    """Raise RunInvalid where another ingest of the run began since; these files are read again then."""
    run_id = plan.manifest.run_id
    noted = lake.note(run_id, NOTE)
    if not plan.new or noted.get("reading") == token:
        return
    read = {file.source for file in plan.new}
    left = {name: file for name, file in noted.get("files", {}).items() if name not in read}
    lake.take_note(run_id, NOTE, noted | {"reading": SEVERAL, "files": left})
    raise RunInvalid(
        f"{lake.root}: another ingest of {run_id!r} went on meanwhile: ingest it again"
    ) from fault


def ingested(lake: Lake, run_id: str) -> Ingested:
    """Return a run in the lake. Raises RunInvalid when it is not there."""
    noted = lake.note(run_id, NOTE)
    if not noted:
        known = ", ".join(lake.runs()) or "none"
        raise RunInvalid(f"{lake.root}: no run {run_id!r} was ingested; there are: {known}")
    if noted.get("reading"):
        raise RunInvalid(f"{lake.root}: an ingest of {run_id!r} was interrupted: ingest it again")
    return _ingested(read_manifest(lake.run_folder(run_id)).on_wall_clock(), noted, ())


def _ingested(manifest: Manifest, noted: Mapping[str, Any], read: tuple[str, ...]) -> Ingested:
    return Ingested(
        manifest=manifest,
        files=noted["files"],
        read=read,
        skipped=tuple((name, why) for name, why in noted["skipped"]),
        missing=tuple(noted["missing"]),
        clock_spread_ns=noted["clock_spread_ns"],
        clock_doubt_ns=noted.get("clock_doubt_ns", 0),
    )


def _refuse_namesake(lake: Lake, folder: Path, manifest: Manifest) -> None:
    """Refuse a second run of one name: both would be one in every report."""
    if lake.note(manifest.run_id, "manifest"):
        other = read_manifest(lake.run_folder(manifest.run_id)).anchor
        if other != manifest.anchor:
            raise RunInvalid(
                f"{folder}: another run of the name {manifest.run_id!r} was ingested before, from "
                f"{lake.note(manifest.run_id, NOTE).get('folder')}: give one of them another run_id"
            )


def _read(
    session: SparkSession,
    lake: Lake,
    manifest: Manifest,
    kind: str,
    files: Sequence[EventFile],
    moved: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """Read files of one kind. Returns source -> its note. moved: sources whose rows they replace."""
    run_id = manifest.run_id
    parsed = rows_of(session, kind, files, manifest)
    good, seen = counted(parsed, kind)
    sources = [*(file.source for file in files), *moved]
    replaces = [f"{DATE}=*/{RUN}={run_id}/{SOURCE}={source}" for source in sources]
    lake.write(kind, good, by=BY, replaces=replaces)
    counts = line_counts(seen)
    bad = counts["lines"] - counts[ANCHOR] - counts["good"]
    if bad or any(map(list, map(lake.folder(QUARANTINE).glob, replaces))):
        wrong = quarantined(parsed, kind, run_id)
        lake.write(QUARANTINE, wrong, by=BY, replaces=replaces)
    by_file = _by_file(session, lake, kind, run_id, files, is_whole=not bad)
    told = sum(each["good"] for each in by_file.values())
    if told != counts["good"]:
        raise RunInvalid(f"{kind}: {told:,} good rows kept of {counts['good']:,} that were read")
    return by_file


def _by_file(
    session: SparkSession,
    lake: Lake,
    kind: str,
    run_id: str,
    files: Sequence[EventFile],
    *,
    is_whole: bool,
) -> dict[str, dict[str, Any]]:
    wanted = F.col(SOURCE).isin(*[file.source for file in files])
    partitions = partitions_of(run_id, [file.source for file in files])
    kept = lake.read(session, kind, schema_of(kind), *partitions).filter(wanted)
    pairs = [F.collect_set(F.array("topic", "subscription")).alias("pairs")]
    counts = kept.groupBy(SOURCE).agg(
        F.count(F.lit(1)).alias("n"), *(pairs if kind == "delivered" else [])
    )
    rows = {row[SOURCE]: row for row in counts.collect()}
    good = {source: row.n for source, row in rows.items()}
    bad: dict[str, dict[str, int]] = {file.source: {} for file in files}
    examples: dict[str, dict[str, str]] = {file.source: {} for file in files}
    if not is_whole:
        wrong = lake.read(session, QUARANTINE, QUARANTINE_SCHEMA, *partitions).filter(wanted)
        counted = wrong.groupBy(SOURCE, "reason").agg(
            F.count(F.lit(1)).alias("n"), F.min("value").alias("example")
        )
        for row in counted.collect():
            bad[row[SOURCE]][row.reason] = row.n
            examples[row[SOURCE]][row.reason] = row.example
    return {
        file.source: {
            "kind": kind,
            "form": file.form,
            "bytes": file.size,
            "weight": file.weight,
            "sha256": file.sha256,
            "anchors": int(bool(file.head)),
            "has_anchor": file.anchor is not None,
            "anchor": anchor_noted(file.anchor, file.offset_ns),
            "offset_ns": file.offset_ns,
            "good": good.get(file.source, 0),
            "bad": bad[file.source],
            "examples": examples[file.source],
        }
        | (
            {"pairs": sorted(rows[file.source].pairs if file.source in rows else [])}
            if kind == "delivered"
            else {}
        )
        for file in files
    }
