from tests.locks.test_rates import *  # noqa: F403
