"""A sale with its stock, and the tickets that it sold.

The database has no constraint and no row lock to protect the stock. Only the Redis lock does so.
"""

from django.db import models


class Sale(models.Model):
    """A flash sale. Only the newest sale is open."""

    tickets = models.IntegerField()
    stock = models.IntegerField()  # may be negative, which shows that too much was sold
    opened_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        get_latest_by = "pk"

    def __str__(self) -> str:
        return f"sale {self.pk}: {self.stock} of {self.tickets} left"


class Ticket(models.Model):
    """A sold ticket. If two tickets of a sale have the same number, one was sold twice."""

    sale = models.ForeignKey(Sale, on_delete=models.CASCADE, related_name="sold")
    number = models.IntegerField()
    buyer = models.CharField(max_length=100)
    worker = models.IntegerField(help_text="pid of the worker that sold it")
    sold_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"ticket {self.number} of sale {self.sale_id}, sold to {self.buyer}"
