"""Implementation of `messagebus worker module:app`: it loads, runs and supervises an app."""

from messagebus.worker.process import load, work
from messagebus.worker.supervisor import Supervisor

__all__ = ["Supervisor", "load", "work"]
