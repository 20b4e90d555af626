from tests.behaviour.test_permits import *  # noqa: F403
