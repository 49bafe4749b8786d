"""The bus as an extension of Flask."""

from __future__ import annotations

import os
from collections.abc import Callable

from flask import Flask, current_app

from messagebus import BusConfig, Publisher
from messagebus.integrations.sharing import SharedPublisher

__all__ = ["MessageBus", "publisher"]

NAME = "messagebus"


class MessageBus:
    """Extension of Flask with one publisher for each process, started at its first use.

    The application's configuration has the settings of `BusConfig` as ``MESSAGEBUS = {...}``; without them
    they are read from the environment. make: function that creates the publisher, such as
    `MemoryBus.publisher` in tests.
    """

    def __init__(
        self, application: Flask | None = None, *, make: Callable[[], Publisher] | None = None
    ) -> None:
        self._make = make
        if application is not None:
            self.init_app(application)

    def init_app(self, application: Flask) -> None:
        """Add it to an application. Raises ConfigError for wrong settings."""
        settings = application.config.get("MESSAGEBUS")
        bus = None if settings is None else BusConfig.from_mapping(settings)
        make = self._make or (lambda: Publisher(bus or BusConfig.from_env(os.environ)))
        application.extensions[NAME] = SharedPublisher(make)


def publisher() -> Publisher:
    """Return the publisher of the current application. Raises ConfigError and Stopped."""
    shared: SharedPublisher = current_app.extensions[NAME]
    return shared.get()
