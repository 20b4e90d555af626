from tests.locks.test_read_write import *  # noqa: F403
