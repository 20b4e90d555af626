"""Claims of docs/security.md that no other test proves."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

import django_redis_sync
from django_redis_sync import Lease, LeaseLost, Lock
from tests.support.commands import run
from tests.support.operators import locks

PACKAGE = Path(django_redis_sync.__file__).parent


# Tokens


#: A program that acquires 50 leases. It prints their tokens, and the random bytes that it drew.
DRAW = """
import json, os, random
drawn, draw = [], getattr(os, "getrandom", os.urandom)
os.getrandom = os.urandom = lambda size: drawn.append(draw(size)) or drawn[-1]
import django
django.setup()
from django_redis_sync import Semaphore
sem, tokens = Semaphore("many", 50), []
for _ in range(50):
    random.seed(1)
    tokens.append(sem.acquire().token)
print(json.dumps([tokens, [bits.hex() for bits in drawn]]))
"""


def test_token_is_128_bits_from_the_systems_random_source(clean_redis: None) -> None:
    """Each acquire draws a new token, which doesn't depend on the seed of `random`."""
    module = {"DJANGO_SETTINGS_MODULE": "tests.settings"}
    tokens, drawn = json.loads(run(sys.executable, "-c", DRAW, cwd=PACKAGE.parent, **module))
    assert 50 == len({*tokens}) and {32} == {*map(len, tokens)} and {*tokens} <= {*drawn}


def test_token_is_never_shown_in_full(raw: redis.Redis, caplog: Any) -> None:
    """repr, errors, logs, status, and the command show at most the first eight digits of a token. A
    lease can't be adopted with these digits."""
    caplog.set_level(logging.DEBUG)
    lock = Lock("secret", timeout=60, label="nightly")
    lease = lock.acquire()
    shown = lock.status()
    texts = [repr(lease), str(lease), repr(shown), repr(lock), str(shown.holders[0])]
    texts += [locks("status", "secret", format=output) for output in ("table", "json")]
    (holder,) = json.loads(texts[-1])["names"][0]["holders"]
    assert ("nightly", lease.fence) == (holder["label"], holder["fence"])
    texts.append(locks("clear", "secret", "--no-input"))
    for ask in (lease.renew, lease.release, lease.check):
        with pytest.raises(LeaseLost) as caught:
            ask()
        texts += [str(caught.value), repr(caught.value)]
    texts += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert not [text for text in texts if lease.token in text]
    assert any(lease.token[:8] in text for text in texts)
    with pytest.raises(ValueError, match="not the handle"):
        Lease.from_handle(lease.token[:8])


# Code


def test_package_uses_no_pickle_no_eval_and_no_shell() -> None:
    """The library parses data from Redis, headers, and handles as JSON, or splits it as text.
    `locks run` starts a program with a list of arguments."""
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
            elif isinstance(node, ast.keyword) and node.arg == "shell":
                assert ast.unparse(node.value) == "False", path
            assert not names & modules, f"{path}: {names}"
