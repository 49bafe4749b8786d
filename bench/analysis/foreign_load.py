"""A run of a load that is not ours, with a note on what such a load does not measure.

The folder has the same ``run.json``, ``profile.json``, ``result.json`` and ``brokers.parquet`` as any run,
so `compare` reads it too; it has no parts, no fates and no histograms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.analysis.result import RESULT
from bench.environment import describe, load_average
from bench.errors import InputInvalid
from bench.harness import sampling
from bench.harness.coordinator import MACHINE, SAMPLES
from bench.harness.interface import Outside, Running, durability, measure_outside
from bench.harness.sampling import Sampler
from bench.harness.workers import PROFILE, RUN, make_empty_folder
from bench.load.profile import Profile
from messagebus.files import replace_file


def conduct_outside(
    profile: Profile, folder: Path, running: Running, say: Callable[[str], None]
) -> dict[str, Any]:
    """Do one run into a new folder; return the content of `result.json`. Raises BenchError."""
    make_empty_folder(folder)
    replace_file(folder / PROFILE, json.dumps(profile.as_json(), indent=1))
    about: dict[str, Any] = {
        "environment": describe(),
        "system": dict(running.about()),
        "durability": durability(profile),
        "outside": True,
        "complete": False,
        "faults": ["the run did not end in order"],
    }
    replace_file(folder / RUN, json.dumps(about, indent=1))
    sampler = Sampler(running.probes(), time.monotonic_ns())
    sampler.start()
    try:
        say(f"{profile.system.name} makes its own load")
        found = measure_outside(profile, running, folder)
        about |= {"complete": True, "faults": []}
    finally:
        samples, busy = sampler.stop()
        sampling.save(folder / SAMPLES, samples)
        sampling.save(folder / MACHINE, busy)
        about["environment"]["load_after"] = load_average()
        replace_file(folder / RUN, json.dumps(about, indent=1))
    brokers = sampling.totals(samples, profile.time.warm_up_s, _end_s(profile))
    result = {"profile": profile.as_json(), **about, **_numbers(profile, found), "brokers": brokers}
    replace_file(folder / RESULT, json.dumps(result, indent=1))
    return result


def read_outside(folder: Path) -> dict[str, Any] | None:
    """Read `result.json`; None for a folder of another kind of run.

    Raises InputInvalid if the run was cut short: only the load itself knew its numbers.
    """
    try:
        about = json.loads((folder / RUN).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(about, dict) or not about.get("outside"):
        return None
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError) as fault:
        raise InputInvalid(f"{folder}: was cut short, and its load said nothing") from fault
    return found


def write_outside(result: dict[str, Any], folder: Path) -> str:
    """Write report.txt into the run's folder and return its text."""
    text = render_outside(result)
    (folder / "report.txt").write_text(text + "\n")
    return text


def render_outside(result: dict[str, Any]) -> str:
    profile = result["profile"]
    lines = [
        f"{profile['name']}, {profile['system']['name']}, a load that is not ours: "
        f"{result['confirmed_per_s']:,.0f} confirmed a second",
        f"  a confirm means: {result['durability']}",
    ]
    if result["delivered_per_s"] is not None:
        lines.append(f"  {result['delivered_per_s']:,.0f} delivered a second")
    for measure, found in result["percentiles_ms"].items():
        told = ", ".join(f"{name} {value:.3g} ms" for name, value in found.items())
        lines.append(f"  {measure}: {told}")
    lines += [
        f"  {broker}: {each['cpu_s']:.1f} s CPU" for broker, each in result["brokers"].items()
    ]
    return "\n".join([*lines, *(f"  not measured: {each}" for each in result["lacks"])])


def _end_s(profile: Profile) -> float:
    return profile.time.warm_up_s + profile.time.measured_s


def _numbers(profile: Profile, measured: Outside) -> dict[str, Any]:
    """Return the numbers in the form of `Result.as_json`."""
    cpu_s, measured_s = measured.client_cpu_s, profile.time.measured_s
    clients = [] if cpu_s is None else [{"name": "outside", "cpu_share": cpu_s / measured_s}]
    return {**asdict(measured), "measured_s": measured_s, "clients": clients, "fates": None}
