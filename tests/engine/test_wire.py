"""Explanations of configuration errors, labels of holders, and the library's clock."""

from __future__ import annotations

import ssl
import time
from typing import Any

import pytest
import redis
from django.conf import settings
from redis import exceptions as errors

from django_redis_sync import Semaphore
from django_redis_sync.engine import wire


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.AuthenticationError("odd"), "user or password"),
        (errors.ResponseError("NOAUTH Authentication required."), "user or password"),
        (errors.AuthorizationError("odd"), "permissions"),
        (errors.ResponseError("NOPERM this user has no permissions"), "permissions"),
        (ssl.SSLError("certificate verify failed"), "TLS"),
        (ssl.SSLEOFError("cut"), ""),
        (errors.ResponseError("DB index is out of range"), "database number"),
        (errors.ConnectionError("refused"), ""),
        (None, ""),
    ],
)
def test_configuration_error_message_contains_the_name_of_the_wrong_setting(
    error: Any, text: str
) -> None:
    found = wire.configuration_error(error)
    assert text in found if text else found == ""


def test_configuration_error_is_found_among_chained_exceptions() -> None:
    outer = errors.ConnectionError("while connecting")
    outer.__cause__ = errors.ConnectionError("handshake")
    outer.__cause__.__context__ = errors.AuthenticationError("WRONGPASS")
    assert "password" in wire.configuration_error(outer)


def test_labels_are_shortened_when_written_and_when_read(raw: redis.Redis) -> None:
    info, long = f"{settings.PREFIX}:{{x}}:info", "x" * 1000
    semaphore = Semaphore("x", 2, label=long)
    with semaphore as lease, Semaphore("x", 2):
        record = raw.hget(info, lease.token).decode().partition("{")
        assert f'"label":"{long[:200]}"' in record[2]
        for written, host in ((f'{{"host": "{long}"}}', long[:200]), ("[" * 10**5, None)):
            raw.hset(info, lease.token, record[0] + written)
            (holder,) = (one for one in semaphore.status().holders if one.token == lease.token)
            assert host == holder.label.get("host")


def test_clock_includes_the_time_in_which_the_machine_sleeps() -> None:
    clock: Any = wire.clock
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    assert boot is None or (time.clock_gettime, (boot,)) == (clock.func, clock.args)
