"""Argv builders: pure functions, no shell text. What runs them is `ops.shell` or `ops.local`."""
