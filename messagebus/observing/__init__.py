"""Observation of a whole bus: all agents and balancers asked side by side, and what follows from it.

`snapshot` has the values, `ask` asks; `rates`, `totals`, `rules` and `changes` conclude, and are pure.
"""
