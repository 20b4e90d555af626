"""The clock, Redis's wire format, and the meaning of redis-py's exceptions."""

from __future__ import annotations

import re
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from traceback import walk_tb
from types import FrameType
from typing import Any, TypeVar

from redis import exceptions as errors

from ..protocol import scripts
from ..protocol.keys import Token
from ..protocol.steps import Failure, Run, Why

T = TypeVar("T")

#: Max seconds to wait for an answer. The project's socket_timeout applies if it is shorter.
ATTEMPT = 5.0
#: Max seconds that a background thread waits for one answer.
ROUND = 1.0
#: Seconds after which a background thread retries a failed step.
RETRY = 1.0

REDIS_ERRORS = (errors.RedisError, OSError)

# redis-py's classes for temporary errors of the server. These errors are recognized by class,
# because redis-py removes the error code from their messages.
_BUSY_ERRORS = (
    errors.BusyLoadingError,
    errors.ReadOnlyError,
    errors.TryAgainError,
    errors.ClusterDownError,
    errors.MasterDownError,
)
_BUSY = ("BUSY", "UNBLOCKED")
# Errors of a server that rejects all writes for a while, because it can't save its data, or has too
# few replicas. In Redis 6, the error of a script has the code in the middle.
_READ_ONLY = re.compile(r"(^|-)(MISCONF|NOREPLICAS) ")
#: If an ACL denies a command, or a command within a script, the server's error message contains one
#: of these texts.
FORBIDDEN = ("NOPERM", "permission", "ACL failure", "can't run this command")
RIGHTS = "missing permissions of the user"
_UNKNOWN = ("WRONGPASS", "NOAUTH", "Authentication required", "invalid username-password")
#: Texts in the errors of an imitation of Redis: its Lua has no library `struct`, or it has no Lua.
#: A Redis server without EVALSHA repeats this word as it was sent, in capitals.
_NO_SCRIPTS = ("global 'struct' (a nil value)", "unknown command 'evalsha'")
#: The error if the server is an imitation of Redis.
IMITATION = (
    "This is not a Redis server: it can't run the scripts of django_redis_sync. fakeredis, for "
    "example, has no Lua, or a Lua without the library `struct`. In tests, use without_redis() of "
    "django_redis_sync.testing, or REDIS_SYNC = {'WITHOUT_REDIS': True}."
)
_NO_DATABASE = ("DB index", "Invalid Database")
# TLS errors after the server has closed the connection. They are temporary.
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_CROWDED = ("max number of clients", "Too many connections")


_boot = getattr(time, "CLOCK_BOOTTIME", None)
# The monotonic clock, in seconds. If the system allows it, this clock also runs while the machine
# sleeps, because leases on the server expire meanwhile.
clock: Callable[[], float] = time.monotonic if _boot is None else partial(time.clock_gettime, _boot)


def pack(args: Sequence[Any]) -> bytes:
    """Return a command in Redis's wire format. Arguments are str, bytes or int."""
    out = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if type(arg) is bytes else str(arg).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def pack_step(step: Run) -> bytes:
    """Return the same bytes as `pack(words_of(step))`, but in less time. In most steps, only the
    token and the argument after it are new. All other words are packed once and cached."""
    # Count characters instead of bytes. In ASCII text, both numbers are equal.
    verb, keys, argv, _ = step
    if len(keys) != 2:  # a script on several names
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


#: The types of arguments that need no conversion to text. Most arguments have one of these types.
_TEXTS = {str, Token}


_once = lru_cache(maxsize=1024, typed=True)(_words)


def words_of(step: Run, whole: bool = False) -> tuple[Any, ...]:
    """Return the Redis command for a step, as a tuple of words. `whole`: True for EVAL with the
    script's source, False for EVALSHA with the script's hash."""
    script = scripts.script(step.verb)
    head = ("EVAL", script.source) if whole else ("EVALSHA", script.sha)
    return (*head, len(step.keys), *step.keys, *step.argv)


def answered(reply: Any) -> Any:
    """Return the reply of a script as a list. Most scripts reply with one text, which is split at
    spaces."""
    return text(reply) if type(reply) is list else text(reply).split(" ")


def text(reply: Any) -> Any:
    """Return a reply with bytes decoded to str. Parts that are not bytes are not changed."""
    if type(reply) is list:
        return [
            item.decode(errors="replace") if type(item) is bytes else text(item) for item in reply
        ]
    return reply.decode(errors="replace") if type(reply) is bytes else reply


def decoded(reply: Any) -> Any:
    """Return a reply with bytes decoded to str. The reply may be a dict, as over RESP3."""
    if isinstance(reply, dict):
        return {text(key): text(value) for key, value in reply.items()}
    return text(reply)


def pairs_of(reply: Sequence[Any]) -> list[tuple[str, float]]:
    """Return the pairs (member, score) in the reply to a command with WITHSCORES. In RESP2, the
    reply is a flat list."""
    if not (reply and isinstance(reply[0], (list, tuple))):
        reply = [*zip(reply[::2], reply[1::2], strict=True)]
    return [(member, float(score)) for member, score in reply]


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield `items` in order, in parts of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))


def whole(text: str, other: int = 0) -> int:
    """Return `text` as an int. Return `other` if `text` is not an integer of 64 bits."""
    try:
        value = int(text)
    except ValueError:
        return other
    return value if abs(value) < 2**63 else other


def why(error: BaseException, sent: bool) -> Why:
    """Return the value of `Failure.why` for an exception of redis-py. `sent`: True if the command
    was sent."""
    message = str(error)
    if isinstance(error, (errors.AuthenticationError, errors.AuthorizationError)):
        return "final"
    if is_busy(error):
        return "busy"
    if isinstance(error, errors.ResponseError):
        if _READ_ONLY.search(message):
            return "unreachable"
        return "busy" if message.startswith(_BUSY) else "final"
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError, OSError)):
        if any(words in message for words in _CROWDED):
            return "busy"
        return "unanswered" if sent else "unreachable"
    return "final"


def failure_of(error: BaseException, sent: bool) -> Failure:
    """Return the Failure for an exception of redis-py in sync code. `sent`: True if the command was
    sent.

    If a signal handler of the project raised an OSError, such as a TimeoutError after
    `signal.alarm()`, redis-py takes it for one of its socket. Then raise that exception.
    """
    raised = _raised_by_handler(error)
    if raised is None:
        return Failure(error, clock(), why(error, sent))
    try:
        raise raised
    finally:
        del raised  # prevents a reference cycle: its traceback refers to this frame


class _HiddenTimeout(TimeoutError):
    """A TimeoutError of a signal handler that redis-py has hidden."""


def no_reply(timeout: float, waited: float) -> Exception:
    """Return the exception for a `can_read(timeout)` of redis-py that returned False after `waited`
    seconds. If a signal handler raises a TimeoutError, it returns False too early."""
    if waited < timeout * 0.9:
        return _HiddenTimeout("a signal handler raised a TimeoutError")
    return errors.TimeoutError(f"no reply within {timeout:.1f} s")


def _raised_by_handler(error: BaseException) -> BaseException | None:
    """Return the OSError that a signal handler raised and that caused `error`, or None."""
    origin: BaseException | None = error
    while isinstance(origin, errors.RedisError):
        origin = _caught_before(origin)
    if isinstance(origin, _HiddenTimeout):
        return origin
    if not isinstance(origin, OSError):
        return None
    codes = _codes_of_handlers()
    return origin if any(frame.f_code in codes for frame in _frames(origin)) else None


def _caught_before(error: BaseException) -> BaseException | None:
    """Return the exception that redis-py caught before it raised `error` in the same function.
    Return None if there is none. Another exception, which the project handles, may be its
    context."""
    cause = error.__cause__ or error.__context__
    if cause is None or _frames(error)[-1:] != _frames(cause)[:1]:
        return None
    return cause


def _frames(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in walk_tb(error.__traceback__)]


def _codes_of_handlers() -> set[Any]:
    """Return the code objects of the signal handlers that are set now."""
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    callables = [getattr(one, "func", one) for one in handlers if callable(one)]
    functions = [one if hasattr(one, "__code__") else one.__call__ for one in callables]
    return {getattr(one, "__code__", None) for one in functions}


def is_imitation(error: BaseException) -> bool:
    """Return True if `error` shows that the server is an imitation of Redis, such as fakeredis,
    which can't run the scripts."""
    return _any(_NO_SCRIPTS, str(error))


def is_fake(connection_class: Any) -> bool:
    """Return True if connections of this class are those of fakeredis."""
    bases = connection_class.__mro__ if isinstance(connection_class, type) else ()
    return any(base.__module__.partition(".")[0] == "fakeredis" for base in bases)


def configuration_error(error: BaseException | None) -> str:
    """Return a text that names the wrong setting which caused `error`. Return "" if the error may
    be temporary, so that no setting has to be changed."""
    while error is not None:
        message = str(error)
        if isinstance(error, errors.AuthenticationError) or _any(_UNKNOWN, message):
            return "wrong user or password"
        if isinstance(error, errors.AuthorizationError) or _any(FORBIDDEN, message):
            return RIGHTS
        if isinstance(error, ssl.SSLError) and not isinstance(error, _CUT_OFF):
            return "wrong TLS settings or certificate"
        if _any(_NO_DATABASE, message):
            return "wrong database number"
        error = error.__cause__ or error.__context__
    return ""


def _any(words: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in words)


def is_exhausted(error: BaseException) -> bool:
    """Return True if the pool had no free connection."""
    # Some versions of redis-py, such as 6.2, raise a ConnectionError with this text.
    return isinstance(error, errors.MaxConnectionsError) or "Too many connections" in str(error)


def is_busy(error: BaseException) -> bool:
    """Return True if `error` has one of redis-py's classes for temporary errors of the server."""
    return isinstance(error, _BUSY_ERRORS)
