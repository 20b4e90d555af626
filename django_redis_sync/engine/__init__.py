"""Talks to Redis: connections, drivers of plans, batching, renewing, wake-ups."""
