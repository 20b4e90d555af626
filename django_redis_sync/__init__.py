"""Locks, semaphores and request limits on a project's django-redis connection."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exceptions import LeaseLost, NotAcquired, SyncError, Unavailable
    from .limits.decorator import SemaphoreRequiredMixin, semaphore_required
    from .locks.acquire_all import acquire_all
    from .locks.lease import Lease
    from .locks.locks import Lock, ReadWriteLock, RLock
    from .locks.semaphore import Semaphore
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
    "acquire_all",
    "semaphore_required",
    "synchronized",
]

#: The module of each public name. A module is imported at the first use of one of its names.
_MODULES = {
    "Lease": "locks.lease",
    "LeaseLost": "exceptions",
    "Lock": "locks.locks",
    "NotAcquired": "exceptions",
    "RLock": "locks.locks",
    "ReadWriteLock": "locks.locks",
    "Semaphore": "locks.semaphore",
    "SemaphoreRequiredMixin": "limits.decorator",
    "SyncError": "exceptions",
    "Unavailable": "exceptions",
    "acquire_all": "locks.acquire_all",
    "semaphore_required": "limits.decorator",
    "synchronized": "locks.synchronized",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
