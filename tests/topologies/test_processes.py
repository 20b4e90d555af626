from tests.behaviour.test_processes import *  # noqa: F403
