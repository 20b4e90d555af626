"""Permits and leases: on Sentinel and on a Cluster."""

from tests.behaviour.test_permits import *  # noqa: F403
