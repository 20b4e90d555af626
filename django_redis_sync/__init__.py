"""Locks, semaphores and request limits on a project's django-redis connection."""

from .exceptions import LeaseLost, NotAcquired, SyncError, Unavailable
from .lease import Lease
from .primitives import Lock, Semaphore

__all__ = ["Lease", "LeaseLost", "Lock", "NotAcquired", "Semaphore", "SyncError", "Unavailable"]
