"""Load, latency and audits: what goes in, what comes out, and whether the two agree."""
