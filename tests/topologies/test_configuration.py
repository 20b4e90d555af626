"""The setting REDIS_SYNC, read at each acquire: on Sentinel and on a Cluster."""

from tests.behaviour.test_configuration import *  # noqa: F403
