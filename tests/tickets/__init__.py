"""Eight tickets and fifteen buyers at once, on a real PostgreSQL, under ATOMIC_REQUESTS."""
