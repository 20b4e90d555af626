"""`synchronized`: a decorator that limits the calls of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from ..defaults import SEMAPHORE
from ..protocol.reasons import Rejection
from ..values import unknown, whole
from .lease import Lease
from .semaphore import Semaphore
from .templates import (
    ShareTemplate,
    Template,
    check_function,
    is_async,
    path_of,
    qualname,
    signature_of,
    wraps,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import SemaphoreOptions

Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
_SemaphoreOf = Callable[[Any, Any], Semaphore]


class _Skipping(Protocol):
    """The type of the decorator `synchronized(..., on_full="skip")`. The limited function may also
    return None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


_GENERATORS = (
    "would release the permit before the body of a generator runs: use a `with` block in the "
    "generator instead"
)

#: The attribute that marks a limited function without `release_on_commit`. Inside a transaction, a
#: call of such a function releases its permit before the transaction ends. The value of the
#: attribute is the argument `name` of the decorator.
BEFORE_COMMIT = "_redis_sync_before_commit"


@overload
def synchronized(
    name: str,
    limit: int | None = 1,
    *,
    on_full: Literal["raise", "hold"] = "raise",
    **options: Unpack[SemaphoreOptions],
) -> Callable[[Function], Function]: ...
@overload
def synchronized(
    name: str,
    limit: int | None = 1,
    *,
    on_full: Literal["skip"],
    **options: Unpack[SemaphoreOptions],
) -> _Skipping: ...
def synchronized(
    name: str,
    limit: int | None = 1,
    *,
    on_full: Literal["raise", "skip", "hold"] = "raise",
    **options: Unpack[SemaphoreOptions],
) -> Any:
    """Let at most `limit` calls that have the same name run at the same time.

    For functions and methods, sync and async::

        @synchronized("invoice:{pk}", on_full="skip")
        def send_invoice(pk): ...

    - `name`: a `str.format` template that makes the name from the arguments of the call. Their
      values must be str, int, UUID, date, or Enum.
    - `limit`: max calls of a name at the same time. None, only with a `rate`: any number.
    - `on_full`: what a call does if it gets no permit. "raise" (default): it waits as the options
      say, and then raises NotAcquired. "skip": it returns None. It does not wait unless a
      `blocking_timeout` is given. "hold", for a Celery task: the worker holds the task until it has
      a permit, and runs other tasks meanwhile.
    - `options`: those of `Semaphore`. A `share` is a template as well: `share="{tenant_id}"`.

    Raise TypeError for classes, generators, and wrong options, and ValueError for a name with
    unknown arguments. A call raises what a `with` block over the semaphore raises.
    """
    if wrong := unknown(options, SEMAPHORE):
        raise TypeError(f"synchronized() has no such argument: {wrong}")
    if callable(name):
        called = qualname(name).rpartition(".")[2]
        raise TypeError(
            f'@synchronized needs a name: write @synchronized("{called}") for all calls together, '
            f'or @synchronized("{called}:{{argument}}") for each value of an argument separately'
        )
    template, share = Template(name), options.get("share")
    shares = None if share is None else ShareTemplate(share)
    if shares is None and options.get("share_limit") is not None:
        raise ValueError('share_limit needs a share template, such as share="{tenant_id}"')
    key = options.get("key")
    if isinstance(key, str) and "{" in key:
        raise ValueError(
            f"key={key!r} is not a template: put the argument into the name, such as "
            f'"{template.text}:{key}", or use share={key!r}'
        )
    holds = _holds(on_full, options)
    if on_full == "skip" and "blocking_timeout" not in options:
        options.setdefault("blocking", False)
    if limit is not None or not options.get("rate"):
        whole("limit", limit)
    Semaphore("probe", limit, **options)  # wrong options raise now, not at the first call

    def decorate(function: Function) -> Function:
        check_function(function, "synchronized", _GENERATORS)
        semaphore = _semaphores(function, template, shares, limit, options)
        if holds:
            guarded = _held(function, semaphore)
        elif is_async(function):
            guarded = _limited_async(function, semaphore, on_full)
        else:
            guarded = _limited(function, semaphore, on_full)
        if not options.get("release_on_commit"):
            setattr(guarded, BEFORE_COMMIT, name)
        return guarded  # type: ignore[return-value]

    return decorate


def _semaphores(
    function: Any,
    template: Template,
    shares: ShareTemplate | None,
    limit: int | None,
    options: SemaphoreOptions,
) -> _SemaphoreOf:
    """Return a function that returns the semaphore for the arguments of a call. Raise ValueError if
    a template has unknown arguments."""
    signature = signature_of(function)
    for each in filter(None, (template, shares)):
        each.check(function)
    labelled: SemaphoreOptions = {"label": path_of(function), **options}
    if not template.fields and shares is None:
        same_for_all = Semaphore(template.vformat(template.text, (), {}), limit, **labelled)
        return lambda args, kwargs: same_for_all

    def semaphore(args: Any, kwargs: Any) -> Semaphore:
        asked = labelled
        if shares is not None:
            asked = {**labelled, "share": shares.of(signature, args, kwargs) or None}
        made = Semaphore(template.of(signature, args, kwargs), limit, **asked)
        made._template = template.text if template.fields else ""
        return made

    return semaphore


def _limited(function: Any, semaphore: _SemaphoreOf, on_full: object) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard = semaphore(args, kwargs)
        got = guard._take()
        if isinstance(got, Rejection):
            return _full(guard, got, on_full)
        with ExitStack() as stack:
            stack.push(functools.partial(guard._leave, got))
            result = function(*args, **kwargs)
            if not inspect.isawaitable(result):
                return result
            stack.pop_all()
        return _awaited(guard, got, lambda: result)

    return guarded


def _limited_async(function: Any, semaphore: _SemaphoreOf, on_full: object) -> Callable[..., Any]:
    @wraps(function)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        guard = semaphore(args, kwargs)
        got = await guard._atake()
        if isinstance(got, Rejection):
            return _full(guard, got, on_full)
        return await _awaited(guard, got, lambda: function(*args, **kwargs))

    return guarded


async def _awaited(guard: Semaphore, lease: Lease, call: Callable[[], Any]) -> Any:
    """Await the result of `call`. Then release the lease as an `async with` block does."""
    async with AsyncExitStack() as stack:
        stack.push_async_exit(functools.partial(guard._aleave, lease))
        return await call()


def _full(semaphore: Semaphore, rejection: Rejection, on_full: object) -> None:
    if on_full == "raise":
        raise semaphore._error_of(rejection)


def _held(function: Any, semaphore: _SemaphoreOf) -> Callable[..., Any]:
    if is_async(function):
        raise TypeError(f'{qualname(function)} is async: on_full="hold" is for sync tasks')
    from .celery.tasks import held

    return held(function, semaphore)


def _holds(on_full: Any, options: Any) -> bool:
    """Return True for on_full="hold". Raise ValueError if `on_full` is wrong, or can't be combined
    with the other options."""
    if on_full in ("raise", "skip"):
        return False
    if on_full != "hold":
        raise ValueError(f"on_full must be 'raise', 'skip' or 'hold', not {on_full!r}")
    if wrong := [option for option in ("blocking", "blocking_timeout") if option in options]:
        raise ValueError(f'on_full="hold" waits without limit: leave out {wrong[0]}')
    if not isinstance(options.get("using", ""), (str, type(None))):
        raise ValueError('on_full="hold" works with one server only: a quorum has no queue')
    return True
