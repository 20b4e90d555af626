"""15 buyers buy 8 tickets at the same time, with a real PostgreSQL and ATOMIC_REQUESTS."""
