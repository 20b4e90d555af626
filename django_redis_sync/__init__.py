"""Locks, semaphores and request limits on a project's django-redis connection."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exceptions import LeaseLost, NotAcquired, SyncError, Unavailable
    from .limits.decorator import SemaphoreRequiredMixin, semaphore_required
    from .locks.acquire_all import acquire_all
    from .locks.clearing import aclear, clear
    from .locks.lease import Lease
    from .locks.locks import Lock, ReadWriteLock, RLock
    from .locks.semaphore import Semaphore
    from .locks.single_flight import single_flight
    from .locks.synchronized import synchronized

__all__ = [
    "Lease",
    "LeaseLost",
    "Lock",
    "NotAcquired",
    "RLock",
    "ReadWriteLock",
    "Semaphore",
    "SemaphoreRequiredMixin",
    "SyncError",
    "Unavailable",
    "aclear",
    "acquire_all",
    "clear",
    "semaphore_required",
    "single_flight",
    "synchronized",
]

#: The modules of the public names. A module is imported at the first use of one of its names.
_MODULES = {
    "exceptions": ("LeaseLost", "NotAcquired", "SyncError", "Unavailable"),
    "limits.decorator": ("SemaphoreRequiredMixin", "semaphore_required"),
    "locks.acquire_all": ("acquire_all",),
    "locks.clearing": ("aclear", "clear"),
    "locks.lease": ("Lease",),
    "locks.locks": ("Lock", "RLock", "ReadWriteLock"),
    "locks.semaphore": ("Semaphore",),
    "locks.single_flight": ("single_flight",),
    "locks.synchronized": ("synchronized",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
