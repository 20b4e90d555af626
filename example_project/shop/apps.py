"""The shop as a Django app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app with the label `shop`."""

    name = "example_project.shop"
    default_auto_field = "django.db.models.BigAutoField"
