"""Views of Django alone."""
