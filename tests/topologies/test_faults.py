from tests.behaviour.test_faults import *  # noqa: F403
