"""Figures of what looks at a bus: the monitor's page, its cost, traces, and the pipe tools."""
