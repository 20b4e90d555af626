"""`synchronized`: a decorator that limits the calls of a function."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from asgiref.sync import iscoroutinefunction

from ..defaults import SEMAPHORE
from ..protocol.keys import check_text, shortened
from ..protocol.reasons import Rejection
from ..values import unknown, whole
from .arguments import ALLOWED, own_value, text_of
from .lease import Lease
from .semaphore import Semaphore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import SemaphoreOptions
    from .jobs import JobQueue

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


#: The attribute that marks a limited function without `release_on_commit`. Inside a transaction, a
#: call of such a function releases its permit before the transaction ends. The value of the
#: attribute is the argument `name` of the decorator.
BEFORE_COMMIT = "_redis_sync_before_commit"


class _Template(string.Formatter):
    """A str.format template that makes a name from the arguments of a call.

    Calls with different arguments get different names, because `%`, `:` and the template's
    separators are percent-encoded in the values of the arguments.
    """

    def __init__(self, text: str, what: str = "name") -> None:
        self.text, self.what = check_text(f"a {what}", text, 1000), what
        quoted, before, self.fields = {"%", ":"}, "", list[str]()
        for literal, name, spec, conversion in self.parse(text):
            if "{" in (spec or "") or conversion:
                raise ValueError(
                    "a template can't have conversions (such as !r), or fields in formats (such as "
                    f"{{pk:{{width}}}}): {text!r}"
                )
            before += literal  # the text between the previous argument and this one
            if name is None:
                continue
            parting = {char for char in before if not char.isalnum()} if self.fields else {":"}
            if not parting - {"%"}:
                raise ValueError(
                    f"put a ':' between the arguments in {text!r}, so that different arguments "
                    "make different names"
                )
            quoted, before = quoted | parting, ""
            self.fields.append(name)
        self.quoted = str.maketrans({char: _quoted(char) for char in quoted})

    def check(self, function: Any) -> None:
        """Raise ValueError if the template has an argument that `function` doesn't have, or an
        argument without a name, such as {0}."""
        names = {name.split(".")[0].split("[")[0] for name in self.fields}
        if any(not name or name.isdigit() for name in names):
            raise ValueError(f"use argument names in {self.text!r}: {{pk}}, not {{}} or {{0}}")
        parameters = inspect.signature(function).parameters
        wrong = names - parameters.keys()
        if wrong and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            called, missing = _qualname(function), ", ".join(sorted(wrong))
            raise ValueError(f"{called} has no argument {missing} for {self.text!r}")

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        if key not in kwargs:
            raise TypeError(f"this call has no argument {key} for the {self.what} {self.text!r}")
        return kwargs[key]

    def format_field(self, value: Any, format_spec: str) -> str:
        if not isinstance(value, ALLOWED):
            raise TypeError(
                f"{type(value).__name__} can't be used in the {self.what} {self.text!r}: use str, "
                "int, UUID, date or Enum. For a model, use its pk, such as {account.pk}"
            )
        text = format(own_value(value), format_spec) if format_spec else text_of(value)
        return text.translate(self.quoted)

    def of(self, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
        """Return the name or the share for a call with these arguments."""
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                values = {**values.pop(parameter.name), **values}
        found = self.vformat(self.text, (), values)
        return shortened(found) if self.what == "name" else found


class _ShareTemplate(_Template):
    """The template of a share. If it is a single argument, the share is the plain text of the
    argument's value, as with `Semaphore(share=...)`. If the value is None, there is no share."""

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str):
            kind = type(text).__name__
            raise TypeError(f'share must be a template such as "{{tenant_id}}", not {kind}')
        super().__init__(text, "share")
        if len(self.fields) == 1 and self.text == f"{{{self.fields[0]}}}":
            self.quoted = {}

    def format_field(self, value: Any, format_spec: str) -> str:
        if self.quoted:
            return super().format_field(value, format_spec)
        return "" if value is None else check_text("a share", super().format_field(value, ""))


def _quoted(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


@overload
def synchronized(
    name: str,
    limit: int = 1,
    *,
    on_full: Literal["raise", "retry"] | JobQueue = "raise",
    **options: Unpack[SemaphoreOptions],
) -> Callable[[Function], Function]: ...
@overload
def synchronized(
    name: str, limit: int = 1, *, on_full: Literal["skip"], **options: Unpack[SemaphoreOptions]
) -> _Skipping: ...
def synchronized(
    name: str,
    limit: int = 1,
    *,
    on_full: Literal["raise", "skip", "retry"] | JobQueue = "raise",
    **options: Unpack[SemaphoreOptions],
) -> Any:
    """Let at most `limit` calls that have the same name run at the same time.

    For functions and methods, sync and async::

        @synchronized("invoice:{pk}", on_full="skip")
        def send_invoice(pk): ...

    - `name`: a `str.format` template that makes the name from the arguments of the call. Their
      values must be str, int, UUID, date, or Enum.
    - `limit`: max calls of a name at the same time.
    - `on_full`: what a call does if it gets no permit. "raise" (default): it waits as the options
      say, and then raises NotAcquired. "skip": it returns None. It does not wait unless a
      `blocking_timeout` is given. "retry", for a Celery task: Celery sends the task again, and the
      task keeps its place in the queue of the name. A `JobQueue`: the same with another task queue.
    - `options`: those of `Semaphore`. A `share` is a template as well: `share="{tenant_id}"`.

    Raise TypeError for classes, generators, and wrong options, and ValueError for a name with
    unknown arguments. A call raises what a `with` block over the semaphore raises.
    """
    if wrong := unknown(options, SEMAPHORE):
        raise TypeError(f"synchronized() has no such argument: {wrong}")
    if callable(name):
        called = _qualname(name).rpartition(".")[2]
        raise TypeError(
            f'@synchronized needs a name: write @synchronized("{called}") for all calls together, '
            f'or @synchronized("{called}:{{argument}}") for each value of an argument separately'
        )
    template, share = _Template(name), options.get("share")
    shares = None if share is None else _ShareTemplate(share)
    if shares is None and options.get("share_limit") is not None:
        raise ValueError('share_limit needs a share template, such as share="{tenant_id}"')
    retries = _retries(on_full, options)
    if on_full == "skip" and "blocking_timeout" not in options:
        options.setdefault("blocking", False)
    whole("limit", limit)
    Semaphore("probe", limit, **options)  # wrong options raise now, not at the first call

    def decorate(function: Function) -> Function:
        _check_function(function)
        semaphore = _semaphores(function, template, shares, limit, options)
        if retries:
            guarded = _retried(function, semaphore, on_full)
        elif _is_async(function):
            guarded = _limited_async(function, semaphore, on_full)
        else:
            guarded = _limited(function, semaphore, on_full)
        if not options.get("release_on_commit"):
            setattr(guarded, BEFORE_COMMIT, name)
        return guarded  # type: ignore[return-value]

    return decorate


def _semaphores(
    function: Any,
    template: _Template,
    shares: _ShareTemplate | None,
    limit: int,
    options: SemaphoreOptions,
) -> _SemaphoreOf:
    """Return a function that returns the semaphore for the arguments of a call. Raise ValueError if
    a template has unknown arguments."""
    signature = inspect.signature(function)
    for each in filter(None, (template, shares)):
        each.check(function)
    label = f"{function.__module__}.{_qualname(function)}"
    labelled: SemaphoreOptions = {"label": label, **options}
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
    @functools.wraps(function)
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
    @functools.wraps(function)
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


def _retried(function: Any, semaphore: _SemaphoreOf, on_full: Any) -> Callable[..., Any]:
    from . import jobs

    if _is_async(function):
        raise TypeError(f'{_qualname(function)} is async: on_full="retry" is for sync tasks')
    if on_full != "retry":
        return jobs.guarded(function, semaphore, lambda _: on_full)
    from .celery import queue_of

    return jobs.guarded(function, semaphore, queue_of)


def _retries(on_full: Any, options: Any) -> bool:
    """Return True for on_full="retry" or a JobQueue. Raise ValueError if `on_full` is wrong, or
    can't be combined with the other options."""
    if on_full in ("raise", "skip"):
        return False
    if on_full != "retry" and not hasattr(on_full, "again"):
        raise ValueError(f"on_full must be 'raise', 'skip' or 'retry', not {on_full!r}")
    if wrong := [option for option in ("blocking", "blocking_timeout") if option in options]:
        raise ValueError(f'on_full="retry" never waits: leave out {wrong[0]}')
    if not isinstance(options.get("using", ""), (str, type(None))):
        raise ValueError('on_full="retry" works with one server only: a quorum has no queue')
    return True


def _qualname(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def _is_async(function: Any) -> bool:
    called: Any = type(function).__call__  # `function` may be an object with a method __call__
    return iscoroutinefunction(function) or iscoroutinefunction(called)


def _check_function(function: Any) -> None:
    if hasattr(function, "delay") or hasattr(function, "enqueue"):
        raise TypeError(
            f"put @synchronized below the decorator that turns {_qualname(function)} into a task: "
            "otherwise the worker runs the function without a permit"
        )
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError("put @synchronized below @staticmethod and @classmethod")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"@synchronized is for functions and methods, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            "@synchronized would release the permit before the body of a generator runs: use a "
            "`with` block in the generator instead"
        )
