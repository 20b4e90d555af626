from tests.test_locks_rlock import *  # noqa: F403
