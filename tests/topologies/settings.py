"""Django settings for child processes of the tests that conftest.py runs on a topology."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import CACHES, REDIS_SYNC
from tests.support import journal

from .everywhere import by_name

alias, cache = json.loads(os.environ["DJANGO_REDIS_SYNC_TEST_ELSEWHERE"])
CACHES = {**CACHES, alias: cache}
REDIS_SYNC = {**REDIS_SYNC, "CACHE": alias}

if alias == "cluster":
    journal.CODA = by_name(journal.CODA)
