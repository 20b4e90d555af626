"""Who gets a permit, and what a lease lets its holder do: on Sentinel and on a Cluster."""

from tests.behaviour.test_permits import *  # noqa: F403
