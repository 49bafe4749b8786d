"""Settings of the commands, from the environment."""

from __future__ import annotations

import os

from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig

__all__ = ["bus_settings"]


def bus_settings() -> BusConfig:
    """Read the bus's settings, and check those of publishers and consumers: a wrong name is an error.

    Raises ConfigError.
    """
    PublisherConfig.from_env(os.environ)
    ConsumerConfig.from_env(os.environ)
    return BusConfig.from_env(os.environ)
