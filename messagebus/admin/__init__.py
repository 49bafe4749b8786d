"""Operators' tools in Python: names on all brokers, parked messages, moves, proofs of the token."""
