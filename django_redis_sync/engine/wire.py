"""The wire: the clock, how commands are packed, and the meaning of redis-py's exceptions.

Also the label of a lease: its taker, for people. It is bounded JSON, and never trusted.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from redis import exceptions as errors

from ..protocol import scripts
from ..protocol.keys import Token
from ..protocol.steps import Run, Why

#: Seconds that an answer may take, unless the project's socket_timeout is shorter.
ATTEMPT = 5.0
#: Seconds that an answer to the keeper may take: a hung server must not stall it for longer.
ROUND = 1.0
#: Seconds until the keeper tries a failed step again.
RETRY = 1.0

REDIS_ERRORS = (errors.RedisError, OSError)

_BUSY = ("BUSY", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "UNBLOCKED")
#: How servers say that an ACL forbids it, from outside and from inside a script.
FORBIDDEN = ("NOPERM", "permission", "ACL failure", "can't run this command")
RIGHTS = "for the rights of our user"
_UNKNOWN = ("WRONGPASS", "NOAUTH", "Authentication required", "invalid username-password")
_NO_DATABASE = ("DB index", "Invalid Database")
# These end by themselves: the server went away while TLS was spoken.
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_CROWDED = ("max number of clients", "Too many connections")

#: Characters of a field at the most.
MAX_LABEL = 200
LABEL_FIELDS = ("host", "pid", "thread", "label", "user", "request")


def _pick_clock() -> Callable[[], float]:
    # The server's time goes on while this machine sleeps, and so must our belief in a lease.
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot is None else partial(time.clock_gettime, boot)


clock = _pick_clock()


def pack(args: Sequence[Any]) -> bytes:
    """A command in Redis's wire format. Arguments are str, bytes or int."""
    try:
        # Mostly it is all ASCII, and then characters are bytes.
        return f"*{len(args)}\r\n{_words(*args)}".encode("ascii")
    except UnicodeError:
        return _pack_bytes(args)


def pack_step(step: Run) -> bytes:
    """As `pack(words_of(step))`. The words that many steps share are packed once: all but the token
    and the second argument, a lease or a fence."""
    verb, keys, argv, _ = step
    if len(keys) != 2:  # no verb on a name
        return pack(words_of(step))
    token, first = argv[0], str(argv[1])
    text = (
        f"*{5 + len(argv)}\r\n{_head(scripts.script(verb).sha, keys)}${len(token)}\r\n{token}\r\n"
        f"${len(first)}\r\n{first}\r\n{_once(*argv[2:])}"
    )
    return text.encode("ascii") if text.isascii() else pack(words_of(step))


@lru_cache(maxsize=1024)
def _head(sha: str, keys: tuple[str, ...]) -> str:
    return _words("EVALSHA", sha, len(keys), *keys)


def _words(*args: Any) -> str:
    words = args if {*map(type, args)} <= _TEXTS else [*map(_word, args)]
    return "".join([f"${len(word)}\r\n{word}\r\n" for word in words])


def _word(arg: Any) -> str:
    return arg if isinstance(arg, str) else str(arg, "ascii") if type(arg) is bytes else str(arg)


#: Keys are all text, and of names that never come again the most of what has to be packed.
_TEXTS = {str, Token}


_once = lru_cache(maxsize=1024, typed=True)(_words)


def _pack_bytes(args: Sequence[Any]) -> bytes:
    out = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if type(arg) is bytes else str(arg).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def words_of(step: Run, whole: bool = False) -> tuple[Any, ...]:
    """EVALSHA for a step; EVAL with the whole source once the server said NOSCRIPT."""
    script = scripts.script(step.verb)
    head = ("EVAL", script.source) if whole else ("EVALSHA", script.sha)
    return (*head, len(step.keys), *step.keys, *step.argv)


def answered(reply: Any) -> Any:
    """The reply of a verb: its words, which most verbs send as one text; or its rows."""
    return text(reply) if type(reply) is list else text(reply).split(" ")


def text(reply: Any) -> Any:
    """Replies with bytes made str, whether or not the project's client decodes."""
    if type(reply) is list:
        return [
            item.decode(errors="replace") if type(item) is bytes else text(item) for item in reply
        ]
    return reply.decode(errors="replace") if type(reply) is bytes else reply


def decoded(reply: Any) -> Any:
    """Str for bytes, in RESP3's maps too."""
    if isinstance(reply, dict):
        return {text(key): text(value) for key, value in reply.items()}
    return text(reply)


def whole(text: str, other: int = 0) -> int:
    """The integer that a script wrote; `other` for a value that can't be ours."""
    try:
        value = int(text)
    except ValueError:
        return other
    return value if abs(value) < 2**63 else other


def why(error: BaseException, sent: bool) -> Why:
    """The Failure for an exception of redis-py, on a command that was `sent` or not."""
    message = str(error)
    if isinstance(error, (errors.AuthenticationError, errors.AuthorizationError)):
        return "final"
    if is_busy(error):
        return "busy"
    if isinstance(error, errors.ResponseError):
        return "busy" if message.startswith(_BUSY) else "final"
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError, OSError)):
        if any(words in message for words in _CROWDED):
            return "busy"
        return "unanswered" if sent else "unreachable"
    return "final"


def turned_away(error: BaseException | None) -> str:
    """Which of our settings the server refuses, in words; empty where waiting may mend it."""
    while error is not None:
        said = str(error)
        if isinstance(error, errors.AuthenticationError) or _any(_UNKNOWN, said):
            return "for our user or password"
        if isinstance(error, errors.AuthorizationError) or _any(FORBIDDEN, said):
            return RIGHTS
        if isinstance(error, ssl.SSLError) and not isinstance(error, _CUT_OFF):
            return "for our TLS settings, or by its certificate"
        if _any(_NO_DATABASE, said):
            return "for the number of our database"
        error = error.__cause__ or error.__context__
    return ""


def _any(words: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in words)


def is_exhausted(error: BaseException) -> bool:
    """Whether the pool had no connection left to give."""
    # Before redis-py 6 it was no class of its own.
    return isinstance(error, errors.MaxConnectionsError) or "Too many connections" in str(error)


def is_busy(error: BaseException) -> bool:
    """Whether the server said not now, by the class of the error."""
    # redis-py strips the error code of the replies that it has a class for.
    classes = ("ReadOnlyError", "TryAgainError", "ClusterDownError", "MasterDownError")
    return isinstance(error, errors.BusyLoadingError) or type(error).__name__ in classes


# Labels


@lru_cache(maxsize=1024)
def _label(pid: int, thread: str, label: str, user: str, request: str) -> str:
    values = (socket.gethostname(), pid, thread, label, user, request)
    fields = dict(zip(LABEL_FIELDS, values, strict=True))
    short = {
        key: v[:MAX_LABEL] if isinstance(v, str) else v for key, v in fields.items() if v != ""
    }
    return json.dumps(short, separators=(",", ":"))


def write_label(label: str = "", user: str = "", request: str = "") -> str:
    """This process and thread, and the caller's own words, in ASCII JSON."""
    if request:  # differs every time: nothing to remember
        return _label.__wrapped__(
            os.getpid(), threading.current_thread().name, label, user, request
        )
    return _label(os.getpid(), threading.current_thread().name, label, user, request)


def read_label(text: str) -> dict[str, Any]:
    """The fields, str or int, of a text that `write_label` made; empty for any other."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    known = {key: values[key] for key in LABEL_FIELDS if isinstance(values.get(key), (str, int))}
    return {key: v[:MAX_LABEL] if isinstance(v, str) else v for key, v in known.items()}
