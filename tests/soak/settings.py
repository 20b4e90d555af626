"""Django settings of the soak: those of the tests, with a cache for each server of the soak."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import CACHES, PREFIX

OPTIONS = {"SOCKET_TIMEOUT": 2.5, "SOCKET_CONNECT_TIMEOUT": 1.0}
#: The environment variable SOAK_ALIAS is the URL of a server, or of the proxy in front of it.
CACHES = {
    alias: {**CACHES["default"], "LOCATION": os.environ[f"SOAK_{alias}"], "OPTIONS": OPTIONS}
    for alias in ("kept", "forgetful")
}
CACHES["default"] = CACHES["kept"]

REDIS_SYNC = {"KEY_PREFIX": PREFIX, "TIMEOUT": 2}
