"""Queues whose waiters die or stop: on Sentinel and on a Cluster."""

from tests.behaviour.test_queue_deaths import *  # noqa: F403
