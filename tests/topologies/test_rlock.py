from tests.locks.test_rlock import *  # noqa: F403
