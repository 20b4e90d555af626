"""The time limit of requests for an answer of Redis, on a real server."""

from django_redis_sync.limits.semaphore import RequestSemaphore
from tests.request_site.settings import SITE

# A busy machine may answer later than within 0.5 s. A site with its own Redis server tests outages.
if "redis" not in SITE:
    RequestSemaphore._attempt = 5.0
