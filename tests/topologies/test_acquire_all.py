from tests.test_locks_acquire_all import *  # noqa: F403
