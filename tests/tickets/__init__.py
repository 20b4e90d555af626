"""Sell 8 tickets to 15 buyers at once, with a real PostgreSQL and ATOMIC_REQUESTS."""
