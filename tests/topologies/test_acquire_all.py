from tests.locks.test_acquire_all import *  # noqa: F403
