from __future__ import annotations

from pathlib import Path

import pytest

from lb.place import is_our_master


@pytest.mark.parametrize(
    ("cmdline", "is_ours"),
    [
        (b"/usr/sbin/haproxy\0-Ws\0-f\0/etc/x.cfg\0-p\0pid\0", True),
        (b"haproxy\0-f\0/etc/x.cfg\0", True),
        (b"/usr/sbin/haproxy\0-f\0/etc/y.cfg\0", False),
        (b"vi\0/etc/x.cfg\0", False),
        (b"", False),
    ],
)
def test_our_master_is_a_haproxy_with_our_configuration(cmdline: bytes, is_ours: bool) -> None:
    assert is_our_master(cmdline, Path("/etc/x.cfg")) is is_ours
