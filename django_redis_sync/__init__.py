"""Locks, semaphores and request limits on a project's django-redis connection."""

from .calls import synchronized
from .decorators import semaphore_required
from .exceptions import LeaseLost, NotAcquired, SyncError, Unavailable
from .lease import Lease
from .locks import ReadWriteLock, RLock
from .mixins import SemaphoreRequiredMixin
from .primitives import Lock, Semaphore
from .together import acquire_all

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
