"""django-ninja."""
