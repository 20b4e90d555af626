"""Many callers at once, checked by the journal: on Sentinel and on a Cluster."""

from tests.behaviour.test_storms import *  # noqa: F403
