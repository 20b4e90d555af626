"""A Celery project in processes of its own. Its tasks write to a file what they do."""
