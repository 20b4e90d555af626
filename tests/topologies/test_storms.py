from tests.behaviour.test_storms import *  # noqa: F403
