"""Give the database connections of a waiting request back."""

from __future__ import annotations

import asyncio

from asgiref.sync import sync_to_async
from django.db import connections

from ..logs import logger

#: The tasks that close connections. An event loop has only weak references to its tasks.
_tasks: set[asyncio.Task[None]] = set()


def close_connections(in_task: bool) -> None:
    """Close the database connections of the request that this thread or task serves. Django opens
    them again at the next query. A pool gets them back.

    Keep a connection with an open transaction, and one that a test shares with other threads.
    `in_task`: True in a task. Then the connections are those of the thread that runs the sync code
    of the request. This function doesn't wait for that thread, because later sync code of the
    request runs after the close.
    """
    if not in_task:
        _close()
        return
    task = asyncio.get_running_loop().create_task(sync_to_async(_close)())
    _tasks.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()):
        # The request has ended, and its thread with it.
        logger.debug("the connections of a waiting request were not closed: %s", error)


def _close() -> None:
    for connection in connections.all(initialized_only=True):
        in_transaction = connection.in_atomic_block or not connection.autocommit
        if connection.connection is None or in_transaction or connection.allow_thread_sharing:
            continue
        try:
            connection.close()
        except Exception as error:  # the server has closed it before
            logger.debug("closing the connection %r failed: %s", connection.alias, error)
