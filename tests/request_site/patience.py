"""The time limit of requests for an answer of Redis, on a real server."""

from django_redis_sync.limits.semaphore import RequestSemaphore
from tests.request_site.settings import PATIENCE, SITE

if "redis" not in SITE:  # a site with its own Redis server tests outages
    RequestSemaphore._attempt = PATIENCE
