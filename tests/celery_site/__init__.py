"""A Celery project in processes of its own. Its tasks record what they do in a file."""
