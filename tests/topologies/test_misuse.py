from tests.behaviour.test_misuse import *  # noqa: F403
