"""Wrong arguments: on Sentinel and on a Cluster."""

from tests.behaviour.test_misuse import *  # noqa: F403
