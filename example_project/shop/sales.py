"""The flash sale: read the stock, pay, write the stock. Only the Redis lock protects the stock."""

import asyncio
import os
import time
from contextlib import nullcontext
from typing import Any

from django.conf import settings

from django_redis_sync import Lock
from example_project.shop.models import Sale, Ticket

TICKETS = 10
# Duration of a simulated payment. Without the lock, others would read the same stock meanwhile.
PAYMENT_SECONDS = 0.02
MAX_WAIT = 15  # max seconds that a buyer waits in line


def open_sale(tickets: int = TICKETS) -> Sale:
    """Start a new sale, which replaces the previous one."""
    return Sale.objects.create(tickets=tickets, stock=tickets)


def sale_lock() -> Any:
    """Return the lock of the stock. If locks are disabled, return a null context instead."""
    if settings.WITHOUT_LOCKS:
        return nullcontext()
    return Lock("flash-sale", blocking_timeout=MAX_WAIT)


def buy(buyer: str) -> Ticket | None:
    """Sell one ticket of the open sale, and return the ticket. Return None if none are left."""
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
    """Async version of `buy()`."""
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
    """Return a new ticket. Its number is computed from the stock that the buyer read."""
    number = sale.tickets - sale.stock + 1
    return Ticket(sale=sale, number=number, buyer=buyer, worker=os.getpid())
