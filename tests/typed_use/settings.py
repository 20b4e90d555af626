"""The settings of the project whose code mypy checks."""

SECRET_KEY = "only for mypy"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_redis_sync"]
