from tests.test_locks_synchronized import *  # noqa: F403
