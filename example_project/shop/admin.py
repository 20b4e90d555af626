"""Sales and tickets in the admin."""

from django.contrib import admin

from example_project.shop.models import Sale, Ticket


@admin.register(Sale)
class SaleAdmin(admin.ModelAdmin):
    """Sales with the tickets left."""

    list_display = ["id", "tickets", "stock", "opened_at"]


@admin.register(Ticket)
class TicketAdmin(admin.ModelAdmin):
    """Tickets with the worker that sold them."""

    list_display = ["number", "sale", "buyer", "worker", "sold_at"]
    list_filter = ["sale"]
