"""The flash sale: read the stock, think, write the stock. Only the Redis lock keeps it right."""

import asyncio
import os
import time
from contextlib import nullcontext
from typing import Any

from django.conf import settings

from django_redis_sync import Lock
from example_project.shop.models import Sale, Ticket

TICKETS = 10
# Stands for a payment. Without the lock, others read the same stock meanwhile.
PAYMENT_SECONDS = 0.02
PATIENCE = 15  # seconds that a buyer waits in line


def open_sale(tickets: int = TICKETS) -> Sale:
    """Start a new sale; it takes the place of the one before."""
    return Sale.objects.create(tickets=tickets, stock=tickets)


def sale_lock() -> Any:
    """The lock around the stock, for `with` and `async with`; none in the demo without locks."""
    if settings.WITHOUT_LOCKS:
        return nullcontext()
    return Lock("flash-sale", blocking_timeout=PATIENCE)


def buy(buyer: str) -> Ticket | None:
    """Sell one ticket of the open sale, or None when it is sold out."""
    with sale_lock():
        sale = Sale.objects.latest()
        if sale.stock <= 0:
            return None
        time.sleep(PAYMENT_SECONDS)
        ticket = _next_ticket(sale, buyer)
        ticket.save()
        Sale.objects.filter(pk=sale.pk).update(stock=sale.stock - 1)
        return ticket


async def abuy(buyer: str) -> Ticket | None:
    """The same in async code."""
    async with sale_lock():
        sale = await Sale.objects.alatest()
        if sale.stock <= 0:
            return None
        await asyncio.sleep(PAYMENT_SECONDS)
        ticket = _next_ticket(sale, buyer)
        await ticket.asave()
        await Sale.objects.filter(pk=sale.pk).aupdate(stock=sale.stock - 1)
        return ticket


def _next_ticket(sale: Sale, buyer: str) -> Ticket:
    """The ticket whose turn it is, by the stock that was read."""
    number = sale.tickets - sale.stock + 1
    return Ticket(sale=sale, number=number, buyer=buyer, worker=os.getpid())
