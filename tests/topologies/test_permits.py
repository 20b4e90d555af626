"""Who gets a permit, and what a lease lets its holder do: on Sentinel and on a Cluster."""

from tests.behaviour.test_misuse import test_names_of_all_sorts_work_and_do_not_meet  # noqa: F401
from tests.behaviour.test_permits import *  # noqa: F403
