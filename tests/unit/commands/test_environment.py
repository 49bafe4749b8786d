from __future__ import annotations

import pytest

from messagebus import ConfigError
from messagebus.commands.environment import bus_settings


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MESSAGEBUS_BROKERS", "broker"),
        ("MESSAGEBUS_PUBLISHER_WINDOWS", "window"),
        ("MESSAGEBUS_CONSUMER_PREFETCHED", "prefetch"),
    ],
)
def test_every_wrong_name_is_told_whatever_the_command_needs(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    monkeypatch.setenv(name, "5")
    with pytest.raises(ConfigError, match=nearest):
        bus_settings()
