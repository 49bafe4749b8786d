"""`fab add mb4` is `python -m ops add mb4`; `fab --list` shows all."""

from ops.fab import *  # noqa: F403
