"""Argv builders: pure functions, no shell text. What runs them is `ops.run.shell` or `ops.local`."""
