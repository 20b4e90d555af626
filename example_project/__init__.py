"""A small shop that shows django_redis_sync at work, and the demo that drives it."""
