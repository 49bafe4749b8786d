"""Argv builders: pure functions, no shell text. `ops.run.shell` and `ops.local` run the commands."""
