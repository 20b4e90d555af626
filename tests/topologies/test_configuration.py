from tests.behaviour.test_configuration import *  # noqa: F403
