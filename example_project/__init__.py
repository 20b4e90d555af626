"""A small shop that uses django_redis_sync, and a demo that sends requests to the shop."""
