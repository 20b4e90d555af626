"""Shares of a name: on Sentinel and on a Cluster."""

from tests.behaviour.test_shares import *  # noqa: F403
