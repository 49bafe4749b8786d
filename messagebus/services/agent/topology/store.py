"""The files that an agent keeps over restarts: its map, the operators' drain, a report.

The map and the drain are on disk, fsynced with their folder, before anybody is told of them. The
report of held entries and losses is written, not synced.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from messagebus.errors import ConfigError
from messagebus.files import replace_file, sync_folder, write_whole
from messagebus.services.agent.topology.register import Entry, Snapshot
from messagebus.topology import OPTION_KINDS, with_options

log = logging.getLogger("messagebus.agent")

MAP_FILE = "topology.json"
DRAIN_FILE = "draining"
REPORT_FILE = "report.json"
# Names whose validity is remembered: all agents have one map, and to check 1,000 names takes 8 ms.
NAMES_CHECKED_MAX = 1 << 16


def genesis(state_dir: str | Path) -> bool:
    """Write the first, empty, intact map of an agent of a NEW cluster.

    A broker that joins a cluster gets none: its agent reads the map from the others. Returns False
    and changes nothing when there is a map already.
    """
    folder = Path(state_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / MAP_FILE).exists():
        return False
    write_whole(folder / MAP_FILE, json.dumps(snapshot_to_json(Snapshot(intact=True))), mode=None)
    return True


class Store:
    """The files of one agent in state_dir. Every call blocks; not for the event loop."""

    def __init__(self, state_dir: str | Path) -> None:
        self._folder = Path(state_dir)

    def prepare(self) -> None:
        """Create the folder. Raises ConfigError when it cannot be written to."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / "probe", "")
            (self._folder / "probe").unlink()
        except OSError as fault:
            raise ConfigError(f"state_dir: {fault}") from fault

    def load_map(self) -> Snapshot | None:
        """Load the stored map; None when there is none or it is damaged: then the peers' is adopted."""
        path = self._folder / MAP_FILE
        try:
            return snapshot_from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as fault:
            log.warning("stored map is unusable, adopting the peers' file=%s: %s", path, fault)
            return None

    def save_map(self, snapshot: Snapshot) -> None:
        write_whole(self._folder / MAP_FILE, json.dumps(snapshot_to_json(snapshot)), mode=None)

    def load_draining(self) -> bool:
        return (self._folder / DRAIN_FILE).exists()

    def save_draining(self, draining: bool) -> None:
        if draining:
            write_whole(self._folder / DRAIN_FILE, "", mode=None)
        else:
            (self._folder / DRAIN_FILE).unlink(missing_ok=True)
            sync_folder(self._folder)

    def load_report(self) -> dict[str, Any]:
        """Return the last report of `save_report`; {} when there is none or it is unreadable."""
        try:
            report = json.loads((self._folder / REPORT_FILE).read_text())
        except (OSError, ValueError):
            return {}
        return report if isinstance(report, dict) else {}

    def save_report(self, report: Mapping[str, Any]) -> None:
        replace_file(self._folder / REPORT_FILE, json.dumps(report))


def entry_to_json(entry: Entry) -> dict[str, Any]:
    return {
        "wanted": entry.wanted,
        "number": entry.number,
        "origin": entry.origin,
        "alive": entry.alive,
        "tomb": entry.tomb,
        **dict(entry.options),
    }


def entry_from_json(value: Any) -> Entry:
    """Read one entry. Raises ValueError unless it is one."""
    if not isinstance(value, dict):
        raise ValueError("an entry is an object")
    kinds: dict[str, type] = {
        "wanted": str,
        "number": int,
        "origin": str,
        "alive": bool,
        "tomb": int,
    }
    for key, kind in kinds.items():
        if type(value.get(key)) is not kind:
            raise ValueError(f"entry: {key} must be {kind.__name__}")
    options = {key: value[key] for key in sorted(OPTION_KINDS) if key in value}
    if options:
        with_options(value["wanted"], options)
    else:
        _check(value["wanted"])
    return Entry(**{key: value[key] for key in kinds}, options=tuple(options.items()))


@functools.lru_cache(NAMES_CHECKED_MAX)
def _check(name: str) -> None:
    """Raise ValueError unless the name can be wanted."""
    with_options(name, {})


def snapshot_from_json(value: Any) -> Snapshot:
    """Read a whole map; unknown keys are passed over. Raises ValueError unless it is one."""
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise ValueError("a map is an object with entries")
    floor = value.get("floor", 0)
    dropped = value.get("dropped", floor)
    if type(value.get("intact")) is not bool:
        raise ValueError("a map says intact")
    if type(floor) is not int or type(dropped) is not int:
        raise ValueError("floor and dropped must be int")
    entries = tuple(entry_from_json(entry) for entry in value["entries"])
    return Snapshot(intact=value["intact"], floor=floor, dropped=dropped, entries=entries)


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "intact": snapshot.intact,
        "floor": snapshot.floor,
        "dropped": snapshot.dropped,
        "entries": [entry_to_json(entry) for entry in snapshot.entries],
    }
