from __future__ import annotations

from pathlib import Path

import pytest

from bench.clients.jvm.artemis_java import options, outside_of, read
from bench.errors import BenchError
from bench.load.profile import Profile

# Artemis 2.40 writes an array with a sample on each line.
TIMES = (
    '{"mean":"80.41","50":70,"90":120,"99":950,"99.9":4100,"99.99":5000,"max":5000,"count":2000}'
)
SAID = f"""[
{{"sampleType":"interval","warmup":true,"time":1,"sent":3,"completed":2,"received":1}},
{{"sampleType":"interval","warmup":false,"time":2,"sent":1000,"completed":990,"received":980}},
{{"sampleType":"interval","warmup":false,"time":3,"sent":1000,"completed":1010,"received":1020}},
{{"sampleType":"summary","time":4,"result":"success","totalSendTime":{TIMES},"totalTransferTime":{TIMES}}}
]"""


def test_rates_are_of_the_seconds_after_the_warm_up_and_times_in_ms() -> None:
    found = outside_of(read(SAID), [])
    assert (found.confirmed_per_s, found.delivered_per_s) == (1000, 1000)
    assert found.percentiles_ms["service"] == {"p50": 0.07, "p90": 0.12, "p99": 0.95, "p99.9": 4.1}
    assert found.percentiles_ms["sent to received"]["p50"] == 0.07


def test_of_a_file_that_is_cut_short_the_whole_lines_are_read_and_there_is_no_result() -> None:
    samples = read(SAID[: SAID.index('"result"')])
    assert [each["sampleType"] for each in samples] == ["interval"] * 3
    with pytest.raises(BenchError, match="measured nothing, or failed"):
        outside_of(samples, [])


def test_its_command_line_has_the_load_of_the_profile() -> None:
    values = {
        "name": "x",
        "system": {"name": "artemis-java", "brokers": 1},
        "load": {"schedule": {"kind": "constant", "rate_per_s": 50}, "window": 7},
    }
    found = options(Profile.from_values(values, "x"), "127.0.0.201", Path("/run/samples.json"))
    assert found[found.index("--rate") + 1] == "50"
    assert found[found.index("--max-pending") + 1] == "7"
    assert {"--persistent", "--tx"} <= set(found)


def test_a_send_is_confirmed_by_the_broker_and_not_by_the_client_itself() -> None:
    values = {
        "name": "x",
        "system": {"name": "artemis-java", "brokers": 1},
        "load": {"schedule": {"kind": "constant", "rate_per_s": 50}},
    }
    found = options(Profile.from_values(values, "x"), "127.0.0.201", Path("/run/samples.json"))
    url = found[found.index("--url") + 1]
    assert url.startswith("tcp://127.0.0.201:61616?confirmationWindowSize=")
