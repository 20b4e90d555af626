"""Django REST framework."""
