"""A Celery project for tests. Its workers are processes of their own. Its tasks record in a file
what they have done."""
