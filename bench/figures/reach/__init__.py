"""Figures of a bus that grows: more brokers, subscriptions and clients."""
