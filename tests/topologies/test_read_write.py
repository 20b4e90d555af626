from tests.test_locks_read_write import *  # noqa: F403
