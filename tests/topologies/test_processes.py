"""Leases across processes: on Sentinel and on a Cluster."""

from tests.behaviour.test_processes import *  # noqa: F403
