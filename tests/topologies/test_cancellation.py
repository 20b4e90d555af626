"""Tasks that are cancelled at any await: on Sentinel and on a Cluster."""

from tests.behaviour.test_cancellation import *  # noqa: F403
