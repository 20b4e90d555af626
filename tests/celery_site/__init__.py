"""A Celery project for tests. Its workers are processes of their own, and its tasks write to a file
what they do."""
