"""Settings of the site on a real server. The environment variable SITE can change them."""

import gc
import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import CACHES, MIDDLEWARE, REDIS_SYNC

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
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
