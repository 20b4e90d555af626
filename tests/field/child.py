"""Run rows of one project of the field suite in this process. Print a dict as JSON: for each row
that failed, its title and the traceback.

    python -m tests.field.child FOLDER [--rows 0,1] [--redis URL] [--postgres DSN]
        [--rounds N]

Without an address, a server is started. `--rounds`: how often a proof repeats what depends on the
order of events.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import traceback
import warnings
from typing import Any

import django
from django.conf import settings

from devtools import postgres
from devtools.servers import shared_server
from tests.field.row import LIMITS, rows_of, sites_of

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    LIMITS,
]
APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django_redis_sync",
]


def settings_of(folder: str, redis_url: str, dsn: str, row: Any) -> dict[str, Any]:
    """Return Django's settings for a row. INSTALLED_APPS of a project or row are added to APPS.
    Other settings replace those below."""
    given = {**getattr(rows_of(folder), "SETTINGS", {}), **row.settings}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "KEY_PREFIX": f"field-{folder}"}
    words = dict(word.split("=") for word in dsn.split())
    database = {
        "NAME": words["dbname"],
        **{key.upper(): words[key] for key in ("host", "port", "user")},
    }
    database |= {"ENGINE": "django.db.backends.postgresql"}
    database |= {"ATOMIC_REQUESTS": given.pop("ATOMIC_REQUESTS", True)}
    database |= {"OPTIONS": given.pop("DATABASE_OPTIONS", {})}
    base = {
        "SECRET_KEY": "only for tests",
        "ALLOWED_HOSTS": ["*"],
        "USE_TZ": True,
        "ROOT_URLCONF": f"tests.field.{folder}.urls",
        "DATABASES": {"default": database},
        "CACHES": {"default": {**cache, "LOCATION": redis_url}},
        "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
        "MIDDLEWARE": MIDDLEWARE,
        "REDIS_SYNC": {"REQUESTS": {"max_waiting_threads": 100}},
    }
    return {**base, **given, "INSTALLED_APPS": [*APPS, *given.get("INSTALLED_APPS", [])]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rows", default="")
    parser.add_argument("--redis", default="")
    parser.add_argument("--postgres", default="")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    rows = rows_of(given.folder).ROWS
    # One process has one set of settings. By hand, take the rows with the settings of the first.
    chosen = (
        [int(one) for one in given.rows.split(",")] if given.rows else sites_of(given.folder)[0]
    )
    with contextlib.ExitStack() as stack:
        redis_url = given.redis or stack.enter_context(shared_server())
        dsn = given.postgres or stack.enter_context(postgres.Postgres()).dsn
        settings.configure(**settings_of(given.folder, redis_url, dsn, rows[chosen[0]]))
        warnings.simplefilter("ignore", DeprecationWarning)  # of packages, which are not ours
        django.setup()
        from tests.field import proofs

        site = stack.enter_context(proofs.Site(given.folder, given.rounds))
        failed = {}
        for index in chosen:
            try:
                site.prove(rows[index])
            except Exception:
                failed[rows[index].title] = traceback.format_exc()
    json.dump(failed, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
