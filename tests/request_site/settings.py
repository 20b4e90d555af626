"""Settings of the site on a real server. `SITE` in the environment changes some of them."""

import gc
import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import MIDDLEWARE, REDIS_SYNC

SITE = json.loads(os.environ.get("SITE", "{}"))

if SITE.get("without_gc"):
    gc.disable()

ROOT_URLCONF = "tests.request_site.views"
WSGI_APPLICATION = "tests.request_site.wsgi.application"

REDIS_SYNC = {**REDIS_SYNC, **SITE.get("sync", {})}
MIDDLEWARE = [*MIDDLEWARE, *SITE.get("middleware", [])]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
