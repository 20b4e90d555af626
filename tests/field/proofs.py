"""What rows prove, for any package. Each public function is a proof: it raises an exception if the
row doesn't work. Its docstring is the column "What is tested" of docs/works-with.md."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client

from django_redis_sync import Lock
from tests.field.row import Row
from tests.field.serving import START_SECONDS, Reply, ask, serve

BUYERS, TICKETS = 15, 8


class Site:
    """The project of this process, with a database, on the servers that its rows need.

    `rounds`: how often a proof repeats what depends on time. `logged`: the library's log messages
    since the last proof began, from level WARNING.
    """

    def __init__(self, folder: str, rounds: int = 1) -> None:
        self.folder, self.rounds = folder, rounds
        self.logged: list[str] = []
        self._stack, self._ports = contextlib.ExitStack(), dict[str, int]()

    def __enter__(self) -> Site:
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.logged.append(record.getMessage())  # type: ignore[method-assign]
        for name in ("django_redis_sync", "django.request"):
            logging.getLogger(name).addHandler(handler)
        logging.getLogger("django.server").disabled = True
        call_command("migrate", verbosity=0)
        self._own = importlib.import_module(f"tests.field.{self.folder}.urls")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        connections.close_all()

    def prove(self, row: Row) -> None:
        """Run the proof of a row."""
        if row.server not in self._ports:
            self._ports[row.server] = self._stack.enter_context(serve(row.server))
        self._port = self._ports[row.server]
        proof = getattr(self._own, row.proof, None) or globals()[row.proof]
        for attempt in range(5):
            self.logged.clear()
            try:
                return proof(self, row)
            except Exception:
                # On a busy machine, Redis may answer so late that the process limits its requests
                # itself. Then the proof says nothing, and is repeated.
                if attempt == 4 or not any("Redis for cache" in line for line in self.logged):
                    raise

    def ask(self, path: str, method: str = "GET", **options: Any) -> Reply:
        """Send a request to the row's server. `options`: see `serving.ask`."""
        return ask(self._port, path, method, **options)

    def at_once(self, count: int, send: Callable[[int], Any]) -> list[Any]:
        """Call `send(number)` in `count` threads that begin together. Return the results."""
        start = threading.Barrier(count, timeout=START_SECONDS)

        def begin(number: int) -> Any:
            start.wait()
            return send(number)

        with ThreadPoolExecutor(count) as threads:
            return [*threads.map(begin, range(count))]

    def user(self, name: str) -> Any:
        """Return the user with this name. The password is the name."""
        found = get_user_model().objects.filter(username=name).first()
        return found or get_user_model().objects.create_user(name, password=name)

    def login(self, name: str) -> dict[str, str]:
        """Return the headers of a browser in which this user has logged in."""
        client = Client()
        client.force_login(self.user(name))
        return {"Cookie": f"sessionid={client.cookies['sessionid'].value}"}


# Tickets. A COMMIT of a sale takes 50 ms, and no other transaction sees the sale before its end.

_TABLE = """
DROP TABLE IF EXISTS ticket;
CREATE TABLE ticket (id serial PRIMARY KEY);
CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ticket DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION slow();
"""


def sell() -> bool:
    """Sell a ticket if one is left. A limit of 1 must prevent that two requests sell the last."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ticket")
        left = cursor.fetchone()[0] < TICKETS
        if left:
            cursor.execute("INSERT INTO ticket DEFAULT VALUES")
        return left


def _sold() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ticket")
        return int(cursor.fetchone()[0])


#: The beginnings of log messages that may appear: Django logs the responses of a throttle, and the
#: library an outage, if Redis answers late on a busy machine.
_EXPECTED = ("Too Many Requests", "Redis for cache")


def sells_each_ticket_once(site: Site, row: Row) -> None:
    """Tickets: 15 buyers get 8 of 8."""
    method = row.arguments.get("method", "POST")
    body = {} if method == "POST" else None

    asks_again = row.arguments.get("asks_again")

    def buy(_: int) -> Reply:
        while True:
            reply = site.ask(row.path, method, body=body)
            if reply.status != 429 or not asks_again:
                return reply
            time.sleep(0.2)

    for number in range(site.rounds):
        with connection.cursor() as cursor:
            cursor.execute(_TABLE)
        got = site.at_once(BUYERS, buy)
        statuses = {reply.status for reply in got}
        assert statuses <= {200, 201, 204}, (number, statuses, got[0].body[:1000], site.logged)
        logged = [line for line in site.logged if not line.startswith(_EXPECTED)]
        assert (TICKETS, []) == (sold := _sold(), logged), (number, sold, logged)


def limits_one_request(site: Site, row: Row) -> None:
    """A second request gets 503. `manage.py check` finds nothing."""
    name, method = row.arguments.get("name", "one"), row.arguments.get("method", "GET")
    assert [] == run_checks(tags=["redis_sync"])
    for _ in range(2):
        with Lock(name):
            rejected = site.ask(row.path, method)
        assert 503 == rejected.status, rejected
        assert int(rejected.headers["retry-after"]) >= 1
        accepted = site.ask(row.path, method)
        assert 200 == accepted.status, (accepted, site.logged)
