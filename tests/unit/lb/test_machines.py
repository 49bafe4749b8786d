from __future__ import annotations

from typing import Any

import pytest

from lb.inventory import parse
from messagebus.errors import ConfigError
from tests.support.balancer import BASE, mirrored_values


def test_a_mirror_names_its_broker_and_two_hosts() -> None:
    read = parse(mirrored_values(), base=BASE)
    mirror = read.mirror("mb1")
    assert mirror.hosts == ("a1", "a2")
    assert (mirror.address, mirror.resync_rate) == ("", "100M")
    assert read.host("a2").ssh == "10.77.0.2:2222"
    assert (read.find("mb1").host, read.find("mb2").host) == ("a1", "")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hosts": ["a1", "a1"]}, "mirrors[0].hosts: ['a1', 'a1']; 2 different ones wanted"),
        ({"hosts": ["a1"]}, "2 different ones wanted"),
        ({"address": "10.77.0.9"}, "mirrors[0].address: '10.77.0.9' is not of the form"),
        ({"resync_rate": "fast"}, "mirrors[0].resync_rate: 'fast' is not of the form"),
        ({"device": "drbd0"}, "mirrors[0].device: 'drbd0' is not of the form"),
        ({"port": 0}, "mirrors[0].port: 0 is not a whole number"),
        ({"disks": "/dev/vdb"}, "mirrors[0].disks: unknown key; did you mean 'disk'?"),
    ],
)
def test_a_wrong_mirror_is_told(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse(mirrored_values(**changes), base=BASE)
    assert fault in str(told.value)
