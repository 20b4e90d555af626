"""The settings of the tests, with a cache alias for each server of the soak."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import CACHES, PREFIX

#: Alias -> environment variable with its URL: a proxy for the parent, the server for children.
SERVERS = {"kept": "SOAK_KEPT_URL", "forgetful": "SOAK_FORGETFUL_URL"}

CACHES = {
    alias: {
        **CACHES["default"],
        "LOCATION": os.environ[variable],
        "OPTIONS": {"SOCKET_TIMEOUT": 2.5, "SOCKET_CONNECT_TIMEOUT": 1.0},
    }
    for alias, variable in SERVERS.items()
}
CACHES["default"] = CACHES["kept"]

REDIS_SYNC = {"KEY_PREFIX": PREFIX, "TIMEOUT": 2}
