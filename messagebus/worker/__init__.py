"""What `messagebus worker module:app` does: load an app, run it, look after several processes of it."""

from messagebus.worker.loading import load
from messagebus.worker.process import work
from messagebus.worker.supervisor import Supervisor

__all__ = ["Supervisor", "load", "work"]
