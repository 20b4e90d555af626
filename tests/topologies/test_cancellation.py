from tests.behaviour.test_cancellation import *  # noqa: F403
