"""Django settings for mypy's check of this folder."""

SECRET_KEY = "only for mypy"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_redis_sync"]
