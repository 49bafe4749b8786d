"""Argv builders: pure functions, no shell text. `inventory.shell` and `ops.local` run the commands."""
