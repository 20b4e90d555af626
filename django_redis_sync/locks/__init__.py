"""What Python code takes: semaphores, locks and leases."""
