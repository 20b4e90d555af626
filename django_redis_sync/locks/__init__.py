"""The primitives that Python code takes: semaphores, locks and leases."""
