"""`manage.py locks --using`: commands show and change only names on the given cache alias."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import redis

from django_redis_sync import Lock, Semaphore
from tests.behaviour.both import eventually
from tests.support.operators import OTHER, act, as_json, failed, locks, status_of
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_renewer")

#: Commands that change nothing, each with a text that its output contains.
READS = {
    "status": "nightly",
    "status nightly": "nightly: 1 of 1 in use",
    "status exports": "2 keys, 2 in use",
    "status exports --key 7 --format json": '"in_use": 1',
    "status --sort rejected --top 1": "are shown. For others, use --top",
    "status --format json": "nightly",
    "status exports --sort use --top 1": "1 of 2 entries are shown",
    "status exports --sort name": "exports@8",
    "status --sort oldest": "nightly",
    "clear * --pattern --dry-run": "Dry run",
    "clear exports --dry-run": "exports@8",
    "history nightly": "granted 1",
    "history exports": "granted 2",
    "doctor": "0 errors",
    "log": "a deploy",
    "log exports --key 7": "a deploy",
}


@pytest.fixture
def held(second: None) -> Iterator[None]:
    """Hold names on the alias `other`, and resize the policy `exports` there."""
    keys = [Semaphore("exports", 3, key=key, **OTHER) for key in "78"]
    with keys[0], keys[1], Lock("nightly", **OTHER):
        eventually(lambda: listed("exports@7", "exports@8", "nightly", **OTHER))
        act("resize", "exports", "7", "--reason", "a deploy", **OTHER)
        eventually(lambda: "granted 2" in locks("history", "exports", **OTHER))
        yield


def doctored(words: str) -> str:
    """Return the output of a command on the alias `other`. Replace "1 error," by "0 errors,": on a
    busy machine, `doctor` reports that the server is slow."""
    with mock.patch("sys.exit"):
        return locks(*words.split(), **OTHER).replace("1 error,", "0 errors,")


def test_locks_command_works_on_another_alias_while_the_default_server_is_down(
    held: None, settings: Any
) -> None:
    dead = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "default": dead}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"of-the-settings": {"limit": 1}}}
    for words, wanted in READS.items():
        assert wanted in doctored(words), words
    assert "Did you mean exports" in failed("status", "export", **OTHER)[1]
    assert "To use the name as a glob, add --pattern" in failed("clear", "night*", **OTHER)[1]
    assert locks("status", "of-the-settings", **OTHER).startswith("of-the-settings: free, limit 1")
    for key in ([], ["--key", "7"]):
        for words in ("pause exports", "resume exports", "resize exports 4"):
            assert "nothing was changed" not in locks(*words.split(), *key, **OTHER)
        assert 4 == status_of("exports", "7", **OTHER).override
        locks("resize", "exports", "--reset", *key, **OTHER)
    assert 9 == len(as_json("log", "exports", **OTHER))


def test_operator_action_takes_effect_only_on_the_given_cache_alias(
    held: None, raw: redis.Redis, settings: Any
) -> None:
    assert (7, None) == (status_of("exports", **OTHER).override, status_of("exports").override)
    act("pause", "nightly", **OTHER)
    assert status_of("nightly", **OTHER).paused and not status_of("nightly").paused
    act("resume", "nightly", **OTHER)
    lease = Lock("stuck", **OTHER).acquire()
    eventually(lambda: listed("stuck", **OTHER))
    assert "Cleared 1." in locks("clear", "stuck", "--no-input", **OTHER)
    assert not lease.owned()
    done = ["clear", "resume", "pause", "resize"]
    assert done == [one["what"] for one in as_json("log", **OTHER)]
    assert [] == as_json("log") == as_json("status")["names"]
    assert "Unknown name: nightly" in failed("status", "nightly")[1]
    # With the fixture `second`, the library's keys of a cache begin with KEY_PREFIX and ":sync".
    assert not raw.exists(
        *(f"{settings.PREFIX}:sync:{part}" for part in ("marks", "acts", "names"))
    )


@contextlib.contextmanager
def cut_connections() -> Iterator[list[bool]]:
    """Cut the connection before every second request of this thread, as a restart of the server
    does. Yield a list with an item for each request: True if its connection was cut."""
    cut: list[bool] = []
    me, send = threading.get_ident(), redis.Connection.send_packed_command

    def sent(self: Any, command: Any, *args: Any, **kwargs: Any) -> None:
        # Commands that set up a new connection are not requests.
        is_request = not re.search(rb"HELLO|AUTH|CLIENT|SELECT", b"".join(command))
        if threading.get_ident() == me and is_request:
            cut.append(not (cut and cut[-1]))
            if cut[-1]:
                self.connect()  # only a connected socket can be cut
                self._sock.shutdown(socket.SHUT_RDWR)
        send(self, command, *args, **kwargs)

    with mock.patch.object(redis.Connection, "send_packed_command", sent):
        yield cut


def test_locks_command_uses_a_new_connection_if_the_old_one_was_cut(held: None) -> None:
    actions = {"pause nightly": "Paused nightly until resume."}
    actions |= {"resume nightly": "Resumed nightly.", "resize exports 4 --key 7": "limit is 4."}
    act("pause", "known", **OTHER)  # load the scripts
    act("resume", "known", **OTHER)
    for words, wanted in {**READS, **actions}.items():
        with cut_connections() as cut:
            assert wanted in doctored(words), words
        assert any(cut)
