"""Settings of the example site. The files of the site are in the folder `.demo/` beside manage.py.

Environment variables: REDIS_URL (the Redis server), DEMO_DIR (another folder), DEMO_SECRET_KEY,
DEMO_DEBUG=1 (turns DEBUG on), and DEMO_WITHOUT_LOCKS=1 (disables all locks and limits).
"""

import hashlib
import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

from example_project.redis_url import neighbour_database

BASE_DIR = Path(__file__).resolve().parent.parent
DEMO_DIR = Path(os.environ.get("DEMO_DIR") or BASE_DIR / ".demo").resolve()
DEMO_DIR.mkdir(parents=True, exist_ok=True)


def _secret_key() -> str:
    """Return the secret key in DEMO_DIR, which all workers share. If there is none, create it."""
    path = DEMO_DIR / "secret_key"
    try:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(get_random_secret_key())
    except FileExistsError:
        pass
    return path.read_text()


SECRET_KEY = os.environ.get("DEMO_SECRET_KEY") or _secret_key()
DEBUG = os.environ.get("DEMO_DEBUG") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redis_sync",
    "example_project.shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    # This middleware is last, so that it records the time just before a view acquires its permit.
    "example_project.shop.middleware.note_arrival",
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DEMO_DIR / "shop.sqlite3",
        "OPTIONS": {
            # With WAL, readers don't block writers. Many workers read and write at once.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    }
}

REDIS_URL = os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379/0"
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL},
    # A separate database for locks, because `cache.clear()` empties a whole database.
    "locks": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": neighbour_database(REDIS_URL),
        # Demos in different folders can use one server without sharing their locks.
        "KEY_PREFIX": "shop-" + hashlib.sha256(str(DEMO_DIR).encode()).hexdigest()[:8],
    },
}

# True disables all limits and locks, to show what happens without them.
WITHOUT_LOCKS = os.environ.get("DEMO_WITHOUT_LOCKS") == "1"

# A short lease, because the demo kills a worker and waits until the lease expires.
LEASE_SECONDS = 5
REDIS_SYNC = {
    "ENABLED": not WITHOUT_LOCKS,
    "CACHE": "locks",
    "TIMEOUT": LEASE_SECONDS,
    "REQUESTS": {
        # While Redis is down, reject all requests, so that the limit is never exceeded.
        "on_outage": "closed",
        # No maximum, because the demo lets many threads wait, and sends no other requests.
        "max_waiting_threads": None,
    },
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "{asctime} {levelname} {process} {name}: {message}", "style": "{"}
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
