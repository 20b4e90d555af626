"""Several names at once: on Sentinel and on a Cluster."""

from tests.test_locks_acquire_all import *  # noqa: F403
