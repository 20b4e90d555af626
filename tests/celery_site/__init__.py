"""A Celery project in processes of its own. What its tasks do is counted outside, in SQLite."""
