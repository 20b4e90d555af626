"""A Redis that rejects the client: for its password, permissions, certificate, or database number.

Only a change of the settings ends such an outage, so the log names the cause and repeats it.
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
from django_redis_sync.engine.wire import configuration_error
from django_redis_sync.limits import breaker as breakers
from django_redis_sync.limits.breaker import breaker
from django_redis_sync.operators import doctor
from tests.behaviour.both import eventually

PASSWORD, RIGHTS = "wrong user or password", "missing permissions of the user"
TLS, DATABASE = "wrong TLS settings or certificate", "wrong database number"


@pytest.fixture
def guarded(new_server: Callable[..., RedisServer]) -> RedisServer:
    """A server that requires a password. Its users `app` and `script` have too few permissions."""
    server = new_server(config={"requirepass": "right"})
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+ping")
        rights = ["on", ">word", "~*", "&*", "+ping", "+evalsha", "+eval", "+time"]
        client.execute_command("ACL", "SETUSER", "script", *rights)
    return server


def shake_hands(context: ssl.SSLContext, client: socket.socket) -> None:
    """Do a TLS handshake as the server.

    If the client has disconnected, `wrap_socket` fails before it returns, and leaves the socket
    open. So the caller keeps the socket.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    while True:
        try:
            return tls.do_handshake()
        except ssl.SSLWantReadError:
            client.sendall(outgoing.read())
            incoming.write(client.recv(65536) or b"\0" * 5)  # invalid TLS ends the handshake
        finally:
            client.sendall(outgoing.read())


@pytest.fixture
def self_signed() -> Iterator[int]:
    """The port of a TLS server with a self-signed certificate."""
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
def cause(request, settings, guarded: RedisServer, self_signed: int) -> str:
    """Set the cache to a server that rejects the client. Return the text that names the cause."""
    url, cause = WAYS.get(request.param, ("rediss://{0}/0", TLS))
    address = f"127.0.0.1:{self_signed if cause == TLS else guarded.port}"
    point_at(settings, url.format(address))
    return cause


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
def test_rejected_client_is_logged_with_its_cause_and_on_outage_applies(
    cause: str, asgi: bool, errors
) -> None:
    assert [True] * 3 == [enters(asgi) for _ in range(3)]
    (line,) = errors()
    assert f"'default' is misconfigured ({cause}): " in line
    assert "locks doctor" in line and "is down" not in line
    error = line.partition(": ")[2].partition("This outage")[0]
    assert "right@" not in line and "wrong" not in error  # no password


def test_lock_raises_unavailable_with_the_cause_when_redis_rejects_the_client(cause: str) -> None:
    with pytest.raises(Unavailable) as caught:
        Lock("one").acquire()
    assert cause == configuration_error(caught.value)


def test_doctor_names_the_cause_when_redis_rejects_the_client(cause: str) -> None:
    found = {finding.id: finding for finding in doctor.examine()}
    if cause == RIGHTS:  # the doctor tries each command
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
    assert all("is misconfigured" in line for line in errors())
    with redis.Redis.from_url(guarded.url) as client:
        client.config_set("requirepass", "wrong")
    eventually(lambda: enters() and not breaker("default").down, 10)
    assert "is available again" in caplog.records[-1].getMessage() + caplog.records[-2].getMessage()


def test_rejected_client_is_logged_when_it_follows_an_outage(
    settings, new_server, errors, monkeypatch
) -> None:
    monkeypatch.setattr(breakers, "PROBE_INTERVAL", 0.02)
    server = new_server()
    point_at(settings, server.url)
    assert enters()
    server.kill()
    assert enters()
    # Set before the restart: the connection of an earlier probe would stay authenticated.
    server.config["requirepass"] = "new"
    server.restart()
    eventually(lambda: enters() and any("is misconfigured" in line for line in errors()), 10)
    assert "is down" in errors()[0]


def test_temporary_error_is_an_outage_and_not_a_rejected_client() -> None:
    for error in (
        redis.ConnectionError("Connection refused"),
        redis.TimeoutError("timed out"),
        redis.BusyLoadingError("loading"),
        redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'."),
        redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    ):
        assert "" == configuration_error(error)
    assert "" == configuration_error(None)


def test_acl_with_another_key_prefix_is_logged_as_missing_rights(
    settings, new_server, errors
) -> None:
    server = new_server()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">word", "~elsewhere:*", "+@all")
    point_at(settings, server.url.replace("//", "//app:word@"))
    assert enters()
    assert RIGHTS in errors()[0]
