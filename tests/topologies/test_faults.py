"""Faults that need no server of their own: on Sentinel and on a Cluster."""

from tests.behaviour.test_faults import *  # noqa: F403
