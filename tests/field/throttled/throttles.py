"""Throttles of the project."""

from django_redis_sync.throttling import ConcurrencyThrottle


class Till(ConcurrencyThrottle):
    scope = "till"
