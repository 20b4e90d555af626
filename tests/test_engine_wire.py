"""Explanations of configuration errors, labels of holders, and the library's clock."""

from __future__ import annotations

import ssl
import time
from typing import Any

import pytest
from django.apps import apps
from redis import exceptions as errors

from django_redis_sync import Lock
from django_redis_sync.engine import names, wire
from django_redis_sync.engine.names import read_label, write_label
from django_redis_sync.engine.wire import configuration_error


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
def test_configuration_error_names_the_wrong_setting(error: Any, text: str) -> None:
    found = configuration_error(error)
    assert text in found if text else found == ""


def test_configuration_error_is_found_among_chained_exceptions() -> None:
    outer = errors.ConnectionError("while connecting")
    outer.__cause__ = errors.ConnectionError("handshake")
    outer.__cause__.__context__ = errors.AuthenticationError("WRONGPASS")
    assert "password" in configuration_error(outer)


def test_labels_are_shortened_when_written_and_when_read() -> None:
    long = "x" * 1000
    for written in (write_label(label=long), write_label(label=long, request="GET /")):
        assert names.MAX_LABEL == len(read_label(written)["label"])
        assert len(written) < 1000
    assert names.MAX_LABEL == len(read_label(f'{{"host": "{long}"}}')["host"])
    assert {} == read_label("[" * 10**5)


def test_clock_includes_the_time_in_which_the_machine_sleeps() -> None:
    clock: Any = wire.clock
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    assert boot is None or (time.clock_gettime, (boot,)) == (clock.func, clock.args)


def test_missing_entry_in_installed_apps_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for installed, times in ((True, 0), (False, 1)):
        monkeypatch.setattr(apps, "is_installed", lambda name, installed=installed: installed)
        settings.REDIS_SYNC = {**settings.REDIS_SYNC}  # so that the settings are read again
        for _ in range(2):
            Lock("x").alias()
        assert times == caplog.text.count("is not in INSTALLED_APPS")
