"""A limit on the calls of a function: on Sentinel and on a Cluster."""

from tests.test_locks_synchronized import *  # noqa: F403
