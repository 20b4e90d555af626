"""Queues whose members die or stop: on Sentinel and on a Cluster."""

from tests.behaviour.test_queue_deaths import *  # noqa: F403
