"""Sales and tickets in the admin."""

from django.contrib import admin

from example_project.shop.models import Sale, Ticket


@admin.register(Sale)
class SaleAdmin(admin.ModelAdmin):
    """Lists sales, each with the number of tickets that are left."""

    list_display = ["id", "tickets", "stock", "opened_at"]


@admin.register(Ticket)
class TicketAdmin(admin.ModelAdmin):
    """Lists tickets, each with the worker that sold it."""

    list_display = ["number", "sale", "buyer", "worker", "sold_at"]
    list_filter = ["sale"]
