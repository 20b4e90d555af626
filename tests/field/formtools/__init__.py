"""django-formtools: wizards."""
