"""Settings of the site on a real server; `SITE` in the environment varies them."""

import gc
import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import CACHES, DATABASES, MIDDLEWARE, REDIS_SYNC

SITE = json.loads(os.environ.get("SITE", "{}"))

if SITE.get("without_gc"):
    gc.disable()

ROOT_URLCONF = "tests.request_site.views"
WSGI_APPLICATION = "tests.request_site.wsgi.application"

CACHES = {**CACHES, "limits": {**CACHES["default"]}}
if "redis" in SITE:
    CACHES["limits"]["LOCATION"] = SITE["redis"]
REDIS_SYNC = {**REDIS_SYNC, "CACHE": "limits", **SITE.get("sync", {})}

MIDDLEWARE = [*MIDDLEWARE, *SITE.get("middleware", [])]
DATABASES = {
    "default": {
        **DATABASES["default"],
        "ATOMIC_REQUESTS": SITE.get("atomic", False),
        # A concurrent writer waits up to 20 seconds. Transactions begin as readers.
        "OPTIONS": {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"},
    }
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
