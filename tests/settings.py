"""Django settings for the tests.

`conftest.py` finds or starts the Redis server and puts its URL into the environment, so that the
processes of a test use the same server and the same keys. If DJANGO_REDIS_SYNC_TEST_ACL is set in
the environment, tests log in to Redis as a user with only the permissions that the docs list.
"""

import os
import secrets

# Each test run has a prefix of its own, because a server at REDIS_URL may have other keys.
PREFIX = os.environ.setdefault("DJANGO_REDIS_SYNC_TEST_PREFIX", f"test-sync-{secrets.token_hex(4)}")

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
# A fast hash, because these tests need no secure passwords.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Max seconds that a request waits for an answer of Redis, except in tests of outages. On a busy
# machine, an answer may take longer than the 0.5 s after which Redis counts as down.
PATIENCE = 5.0

# The behavior tests run a second time with Django's own backend.
BACKEND = os.environ.get("DJANGO_REDIS_SYNC_TEST_BACKEND", "django_redis.cache.RedisCache")

CACHES = {
    "default": {
        "BACKEND": BACKEND,
        "LOCATION": os.environ.get("DJANGO_REDIS_SYNC_TEST_URL", ""),
        "KEY_PREFIX": PREFIX,
    },
}

REDIS_SYNC = {"KEY_PREFIX": PREFIX}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        # This variable is set to a file by tests whose threads or processes share a database.
        "NAME": os.environ.get("DJANGO_REDIS_SYNC_TEST_DB", ":memory:"),
    },
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redis_sync",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
