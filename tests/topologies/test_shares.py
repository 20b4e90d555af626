from tests.behaviour.test_shares import *  # noqa: F403
