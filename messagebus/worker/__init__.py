"""The work of `messagebus worker module:app`: load an app, run it, look after several processes of it."""

from messagebus.worker.process import load, work
from messagebus.worker.supervisor import Supervisor

__all__ = ["Supervisor", "load", "work"]
