"""What docs/security.md claims and no other test shows."""

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


def test_a_token_cannot_be_guessed(clean_redis: None, monkeypatch: Any) -> None:
    """128 bits of the system's randomness, new for every acquisition, whatever seeds there are."""
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


def test_a_token_is_never_shown_whole(raw: redis.Redis, caplog: Any) -> None:
    """Not by repr, errors, logs, status, the command or signals' log lines."""
    caplog.set_level(logging.DEBUG)
    lock = Lock("secret", timeout=60)
    lease = lock.acquire()
    assert lease
    shown = status_of("secret")
    said = [repr(lease), str(lease), repr(shown), repr(lock), str(shown.holders[0])]
    for output in ("table", "json"):
        out = io.StringIO()
        call_command("locks", "status", "secret", format=output, stdout=out)
        said.append(out.getvalue())
    actions.clear(shown, [shown.holders[0].id])
    for ask in (lease.renew, lease.release, lease.check):
        with pytest.raises(LeaseLost) as caught:
            ask()
        said += [str(caught.value), repr(caught.value)]
    said += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert not [text for text in said if lease.token in text]
    assert any(lease.token[:8] in text for text in said)


def test_whoever_has_a_handle_has_the_lease(raw: redis.Redis) -> None:
    """A handle is a bearer's secret: it holds the token. After its use it is worth nothing."""
    lease = Lock("bearer").acquire()
    assert lease
    handle = lease.detach(60)
    assert lease.token in base64.urlsafe_b64decode(handle).decode()
    thief = Lease.from_handle(handle)
    assert thief.held and not lease.held
    thief.release()
    with pytest.raises(LeaseLost):
        Lease.from_handle(handle)


# Who reaches Redis controls all of it


def test_who_may_write_our_keys_controls_every_lock(raw: redis.Redis) -> None:
    """Nothing in Redis is signed: the server, and who may write to it, are trusted."""
    keys = keys_of(PREFIX, "owned")
    lease = Lock("owned", timeout=60).acquire()
    assert lease
    raw.delete(keys.leases, keys.info)
    assert not lease.owned()
    assert Lock("owned", blocking=False).acquire()


# What those who look learn


def test_a_viewer_learns_who_holds_and_not_what_lets_one_act(raw: redis.Redis) -> None:
    """Host, process, thread, the caller's label; a shortened token that is good for nothing."""
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


def test_nobody_writes_lines_into_the_log(raw: redis.Redis, caplog: Any) -> None:
    """Names can't hold line breaks or control characters; labels can, and are never put into a
    message as they are."""
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
    ours = [r for r in caplog.records if r.name.startswith("django_redis_sync")]
    assert ours
    for record in ours:
        assert record.getMessage().isprintable()
    out = io.StringIO()
    with Lock("shown", label=HOSTILE):
        call_command("locks", "status", "shown", stdout=out)
    assert "\x1b[2J" not in out.getvalue() and "\r" not in out.getvalue()


# Code


def test_nothing_is_unpickled_or_evaluated() -> None:
    """What comes from Redis, a header or a handle is JSON or split text."""
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


def test_a_shell_is_never_asked() -> None:
    """`locks run` starts the words it was given, as they are."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path
