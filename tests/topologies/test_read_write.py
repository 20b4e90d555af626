"""Many readers or one writer: on Sentinel and on a Cluster."""

from tests.test_locks_read_write import *  # noqa: F403
