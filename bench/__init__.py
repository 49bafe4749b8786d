"""Load, latency and audits of the bus: what is published, what is delivered, and whether the two agree."""
