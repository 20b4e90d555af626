"""Reentrant locks: on Sentinel and on a Cluster."""

from tests.test_locks_rlock import *  # noqa: F403
