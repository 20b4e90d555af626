"""A Redis that is there and rejects us: a wrong password, right, certificate or database number.

Waiting mends none of it, so it is told in words of its own, and told again.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from django.http import HttpResponse
from django.test import RequestFactory

from devtools.servers import RedisServer
from django_redis_sync import Lock, Unavailable, semaphore_required
from django_redis_sync.engine.wire import turned_away
from django_redis_sync.limits import breaker as breakers
from django_redis_sync.limits.breaker import breaker
from django_redis_sync.operators import doctor
from tests.behaviour.both import eventually
from tests.settings import PREFIX

PASSWORD, RIGHTS = "for our user or password", "for the rights of our user"
TLS, DATABASE = "for our TLS settings, or by its certificate", "for the number of our database"


@pytest.fixture
def guarded(new_server: Callable[..., RedisServer]) -> RedisServer:
    """Wants a password; `app` may PING there, and nothing else."""
    server = new_server(config={"requirepass": "right"})
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+ping")
        rights = ["on", ">word", "~*", "&*", "+ping", "+evalsha", "+eval", "+time"]
        client.execute_command("ACL", "SETUSER", "script", *rights)
    return server


def shake_hands(context: ssl.SSLContext, client: socket.socket) -> None:
    """Over a socket that stays ours: one that `wrap_socket` has is left open when the client is
    gone before it asks who that is."""
    came, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    speaking = context.wrap_bio(came, going, server_side=True)
    while True:
        try:
            return speaking.do_handshake()
        except ssl.SSLWantReadError:
            client.sendall(going.read())
            came.write(client.recv(65536) or b"\0" * 5)  # no TLS: the end
        finally:
            client.sendall(going.read())


@pytest.fixture
def foreign() -> Iterator[int]:
    """The port of one that speaks TLS and whose certificate nobody signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parent / "support" / "localhost.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    shake_hands(context, client)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


WAYS = {
    "no password": ("redis://{0}/0", PASSWORD),
    "wrong password": ("redis://:wrong@{0}/0", PASSWORD),
    "unknown user": ("redis://bob:word@{0}/0", PASSWORD),
    "no right to a command": ("redis://app:word@{0}/0", RIGHTS),
    "no right inside a script": ("redis://script:word@{0}/0", RIGHTS),
    "no such database": ("redis://:right@{0}/99", DATABASE),
}


@pytest.fixture(params=[*WAYS, "certificate"])
def why(request, settings, guarded: RedisServer, foreign: int) -> str:
    """Points the settings at one of these, and says how that is told."""
    way, told = WAYS.get(request.param, ("rediss://{0}/0", TLS))
    where = f"127.0.0.1:{foreign if told == TLS else guarded.port}"
    point_at(settings, way.format(where))
    return told


def point_at(settings, url: str) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url}}


@semaphore_required("one", limit=1)
def view(request):
    return HttpResponse()


@semaphore_required("one", limit=1)
async def aview(request):
    return HttpResponse()


def enters(asgi: bool = False) -> bool:
    request = RequestFactory().get("/")
    return 200 == (asyncio.run(aview(request)) if asgi else view(request)).status_code


@pytest.fixture
def errors(caplog) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "django_redis_sync")
    return lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_rejected_client_is_logged_with_its_cause_and_on_outage_decides(
    why: str, asgi: bool, errors
) -> None:
    assert [True] * 3 == [enters(asgi) for _ in range(3)]
    (line,) = errors()
    assert f"'default' rejects us, {why}: " in line
    assert "locks doctor" in line and "is down" not in line
    assert (
        "right@" not in line and "wrong" not in line.partition(": ")[2].partition("This outage")[0]
    )


def test_lock_raises_unavailable_with_the_cause_if_redis_rejects_us(why: str) -> None:
    with pytest.raises(Unavailable) as caught:
        Lock("one").acquire()
    assert why == turned_away(caught.value)


def test_doctor_names_the_cause_if_redis_rejects_us(why: str) -> None:
    found = {finding.id: finding for finding in doctor.examine()}
    if why == RIGHTS:  # seen by what is tried, command by command
        assert "error" == found["acl"].level
    else:
        assert {"access"} == set(found)
        assert "error" == found["access"].level
        with pytest.raises(Unavailable) as caught:
            Lock("one").acquire()
        assert str(caught.value.__cause__).rstrip(".") in found["access"].detail


def test_rejected_client_is_logged_again_until_the_settings_are_corrected(
    settings, guarded: RedisServer, errors, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(breakers, "PROBE_INTERVAL", 0.02)
    monkeypatch.setattr(breakers, "REMINDER_INTERVAL", 0.3)
    point_at(settings, f"redis://:wrong@127.0.0.1:{guarded.port}/0")
    assert enters()
    eventually(lambda: len(errors()) >= 3, 10)
    monkeypatch.setattr(breakers, "REMINDER_INTERVAL", 300.0)
    assert all("rejects us" in line for line in errors())
    with redis.Redis.from_url(guarded.url) as client:
        client.config_set("requirepass", "wrong")
    eventually(lambda: enters() and not breaker("default").down, 10)
    assert "is available again" in caplog.records[-1].getMessage() + caplog.records[-2].getMessage()


def test_outage_that_ends_with_a_rejected_client_is_logged_as_such(
    settings, new_server, errors, monkeypatch
) -> None:
    monkeypatch.setattr(breakers, "PROBE_INTERVAL", 0.02)
    server = new_server()
    point_at(settings, server.url)
    assert enters()
    server.kill()
    assert enters()
    server.config["requirepass"] = "new"  # from its first answer on: a probe that got in stays in
    server.restart()
    eventually(lambda: enters() and any("rejects us" in line for line in errors()), 10)
    assert "is down" in errors()[0]


def test_error_that_ends_by_itself_is_an_outage() -> None:
    for error in (
        redis.ConnectionError("Connection refused"),
        redis.TimeoutError("timed out"),
        redis.BusyLoadingError("loading"),
        redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'."),
        redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    ):
        assert "" == turned_away(error)
    assert "" == turned_away(None)


def test_acl_for_another_prefix_is_logged_as_missing_rights(settings, new_server, errors) -> None:
    """Keys of another prefix than the one that the user was given."""
    server = new_server()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">word", "~elsewhere:*", "+@all")
    point_at(settings, server.url.replace("//", "//app:word@"))
    assert PREFIX
    assert enters()
    assert RIGHTS in errors()[0]
