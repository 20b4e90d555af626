from tests.locks.test_synchronized import *  # noqa: F403
