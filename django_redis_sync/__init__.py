"""Locks, semaphores and request limits on a project's django-redis connection."""

from .exceptions import LeaseLost, NotAcquired, SyncError, Unavailable
from .limits.decorator import semaphore_required
from .limits.mixin import SemaphoreRequiredMixin
from .locks.acquire_all import acquire_all
from .locks.lease import Lease
from .locks.semaphore import Lock, Semaphore
from .locks.synchronized import synchronized
from .locks.variants import ReadWriteLock, RLock

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
