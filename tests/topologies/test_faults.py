"""Faults that can be tested on a shared server: on Sentinel and on a Cluster."""

from tests.behaviour.test_faults import *  # noqa: F403
