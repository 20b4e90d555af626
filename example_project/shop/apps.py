"""The shop as a Django app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Label `shop`."""

    name = "example_project.shop"
    default_auto_field = "django.db.models.BigAutoField"
