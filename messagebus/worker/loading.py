"""Import an application's `App` by name; what goes wrong is one clear line."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from messagebus.app import App
from messagebus.errors import ConfigError
from messagebus.handling import Words
from messagebus.worker.pulse import of_application

__all__ = ["load"]

DEFAULT_NAME = "app"


def load(target: str) -> App:
    """The app of ``package.module:name``; ``:app`` may be left out.

    The working directory is looked in first. Raises ConfigError: it does not import, there is no such
    name, or it is no `App`.
    """
    module_name, _, path = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"{target!r}: module:app wanted, as in shop.orders:app")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: object = _import(module_name)
    for name in (path or DEFAULT_NAME).split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{module_name} has no {path or DEFAULT_NAME!r}: {_apps(found)}")
        found = getattr(found, name)
    if not isinstance(found, App):
        raise ConfigError(f"{target} is {type(found).__name__}, not a messagebus.App")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as fault:
        if fault.name is not None and (name == fault.name or name.startswith(f"{fault.name}.")):
            raise ConfigError(f"no module {name!r} in {Path.cwd()} or sys.path") from None
        raise ConfigError(_told(name, fault)) from fault
    except BaseException as fault:  # SystemExit too: a script without `if __name__ ...`
        raise ConfigError(_told(name, fault)) from fault


def _told(name: str, fault: BaseException) -> str:
    return f"{name} does not import: {Words().of(fault)} ({where(fault)})"


def where(fault: BaseException) -> str:
    """``file:line`` of the application's innermost line on the way to it."""
    if isinstance(fault, SyntaxError) and fault.filename:
        return f"{fault.filename}:{fault.lineno}"
    frames = of_application(traceback.extract_tb(fault.__traceback__))
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "not in any file"


def _apps(module: object) -> str:
    """What is there instead."""
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"its apps are {', '.join(sorted(names))}" if names else "there is no App in it"
