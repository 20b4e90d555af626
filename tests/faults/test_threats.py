"""Claims of docs/security.md that no other test proves."""

from __future__ import annotations

import ast
import base64
import io
import json
import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command

import django_redis_sync
from django_redis_sync import Lease, LeaseLost, Lock, Semaphore
from django_redis_sync.locks import options
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import eventually
from tests.settings import PREFIX

PACKAGE = Path(django_redis_sync.__file__).parent


# Tokens


def test_token_is_128_random_bits_of_the_system(clean_redis: None, monkeypatch: Any) -> None:
    """Each acquire draws a new token, which doesn't depend on the seed of `random`."""
    drawn: list[bytes] = []
    draw = options._random
    assert draw in (getattr(os, "getrandom", None), os.urandom)
    monkeypatch.setattr(options, "_random", lambda size: drawn.append(got := draw(size)) or got)
    sem, tokens = Semaphore("many", 50), []
    for _ in range(50):
        random.seed(1)
        lease = sem.acquire()
        assert lease
        tokens.append(lease.token)
    assert 50 == len(set(tokens))
    assert set(tokens) <= {bits.hex() for bits in drawn if 128 == 8 * len(bits)}


def test_token_is_never_shown_in_full(raw: redis.Redis, caplog: Any) -> None:
    """repr, errors, logs, status, and the command show at most the first eight digits."""
    caplog.set_level(logging.DEBUG)
    lock = Lock("secret", timeout=60)
    lease = lock.acquire()
    assert lease
    shown = status_of("secret")
    texts = [repr(lease), str(lease), repr(shown), repr(lock), str(shown.holders[0])]
    for output in ("table", "json"):
        out = io.StringIO()
        call_command("locks", "status", "secret", format=output, stdout=out)
        texts.append(out.getvalue())
    actions.clear(shown, [shown.holders[0].id])
    for ask in (lease.renew, lease.release, lease.check):
        with pytest.raises(LeaseLost) as caught:
            ask()
        texts += [str(caught.value), repr(caught.value)]
    texts += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert not [text for text in texts if lease.token in text]
    assert any(lease.token[:8] in text for text in texts)


def test_handle_can_be_adopted_by_anyone_once(raw: redis.Redis) -> None:
    """A handle contains the token, so it is a secret. It can be used only once."""
    lease = Lock("bearer").acquire()
    assert lease
    handle = lease.detach(60)
    assert lease.token in base64.urlsafe_b64decode(handle).decode()
    thief = Lease.from_handle(handle)
    assert thief.held and not lease.held
    thief.release()
    with pytest.raises(LeaseLost):
        Lease.from_handle(handle)


# Access to Redis


def test_client_that_may_write_the_keys_controls_each_lock(raw: redis.Redis) -> None:
    """Data in Redis isn't signed, so the server and all clients that may write are trusted."""
    keys = keys_of(PREFIX, "owned")
    lease = Lock("owned", timeout=60).acquire()
    assert lease
    raw.delete(keys.leases, keys.info)
    assert not lease.owned()
    assert Lock("owned", blocking=False).acquire()


# Views of operators


def test_locks_status_shows_the_holder_but_not_the_token(raw: redis.Redis) -> None:
    """The status shows the label, the fence, and a shortened token, which is not a handle."""
    lease = Lock("looked", timeout=60, label="nightly").acquire()
    assert lease
    out = io.StringIO()
    call_command("locks", "status", "looked", format="json", stdout=out)
    text = out.getvalue()
    json.loads(text)
    for word in ("nightly", str(lease.fence), lease.token[:8]):
        assert word in text
    assert lease.token not in text
    with pytest.raises(ValueError, match="not the handle"):
        Lease.from_handle(lease.token[:8])


# Logs


HOSTILE = "x\r\nERROR root: all is lost\x1b[2J"


def test_names_and_labels_cannot_inject_lines_into_the_log(raw: redis.Redis, caplog: Any) -> None:
    """A name can't contain control characters. A label can, but messages escape it."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ValueError):
        Lock(HOSTILE)
    lock = Lock("said", timeout=3, renew=True, label=HOSTILE)
    lease = lock.acquire()
    assert lease
    shown = status_of("said")
    assert HOSTILE[:5] in str(shown.holders[0].label["label"])
    actions.clear(shown, [shown.holders[0].id])
    eventually(lambda: not lease.held)
    records = [r for r in caplog.records if r.name.startswith("django_redis_sync")]
    assert records
    for record in records:
        assert record.getMessage().isprintable()
    out = io.StringIO()
    with Lock("shown", label=HOSTILE):
        call_command("locks", "status", "shown", stdout=out)
    assert "\x1b[2J" not in out.getvalue() and "\r" not in out.getvalue()


# Code


def test_package_never_unpickles_or_evaluates() -> None:
    """Data from Redis, headers, and handles is parsed as JSON or split text."""
    modules = {"pickle", "marshal", "shelve", "dill", "yaml", "xml", "tempfile", "telnetlib"}
    calls = {"eval", "exec", "compile", "__import__"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = {str(node.module).split(".")[0]}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, f"{path}: {node.func.id}"
            assert not names & modules, f"{path}: {names}"


def test_package_never_uses_a_shell() -> None:
    """`locks run` starts a program with its arguments, without a shell."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path
