"""Which lines are the application's."""

from __future__ import annotations

import asyncio
import traceback

import pytest

import messagebus
from messagebus.worker.places import of_application


@pytest.mark.parametrize(
    ("file", "ours"),
    [
        ("/srv/shop/orders.py", True),
        (asyncio.__file__.replace("asyncio/__init__.py", "site-packages/shop/orders.py"), True),
        (asyncio.__file__, False),
        (messagebus.__file__, False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_lines_of_others_are_left_out(file: str, ours: bool) -> None:
    frame = traceback.FrameSummary(file, 3, "f", line="")
    assert of_application([frame]) == ([frame] if ours else [])
