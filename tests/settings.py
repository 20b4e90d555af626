"""Django settings for the tests.

`conftest.py` finds or starts the Redis server and puts its URL into the environment, so that
processes started by a test, with these same settings, meet the same server and the same keys. With
DJANGO_REDIS_SYNC_TEST_ACL, they are a user there who may do the least that is documented.
"""

import os
import secrets

# Unique per run: a server that others use (REDIS_URL) keeps its own keys.
PREFIX = os.environ.setdefault("DJANGO_REDIS_SYNC_TEST_PREFIX", f"test-sync-{secrets.token_hex(4)}")

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
# Hashing slowly shows nothing here.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("DJANGO_REDIS_SYNC_TEST_URL", ""),
        "KEY_PREFIX": PREFIX,
    },
}

REDIS_SYNC = {"KEY_PREFIX": PREFIX}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        # Threads and processes that share data need a file.
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
