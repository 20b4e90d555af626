"""`synchronized`: a limit on the calls of any function, by its arguments."""

from __future__ import annotations

import enum
import functools
import inspect
import string
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, ExitStack
from datetime import date
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from asgiref.sync import iscoroutinefunction

from ..protocol.keys import check_text
from ..protocol.plans import Refusal
from .lease import Lease
from .semaphore import Semaphore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import SemaphoreOptions

Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class _Skipping(Protocol):
    """A function under `on_full="skip"`: it may return None, too."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


#: The attribute of a function that gives back inside a transaction: its name.
BEFORE_COMMIT = "_redis_sync_before_commit"

_ALLOWED = (str, int, UUID, date, enum.Enum)


class _Template(string.Formatter):
    """str.format over call arguments, strict enough that two calls never meet by accident.

    In values `%`, `:` and the separator of two arguments are percent-quoted.
    """

    def __init__(self, text: str) -> None:
        self.text = check_text("a name", text, 1000)
        parts = list(self.parse(text))
        self.fields = [name for _, name, _, _ in parts if name is not None]
        if any("{" in (spec or "") or conversion for _, _, spec, conversion in parts):
            raise ValueError(f"no conversions (!r) and no fields in formats, please: {text!r}")
        quoted = {"%", ":"}
        for between in _between(parts):
            parting = {char for char in between if not char.isalnum()}
            if not parting - {"%"}:
                raise ValueError(f"put a ':' between the arguments in {text!r}, or they may meet")
            quoted |= parting
        self.quoted = str.maketrans({char: _quoted(char) for char in quoted})

    def names(self) -> set[str]:
        """The arguments that it reads. ValueError for positions, which say nothing."""
        found = {name.split(".")[0].split("[")[0] for name in self.fields}
        if any(not name or name.isdigit() for name in found):
            raise ValueError(f"name the arguments in {self.text!r}: {{pk}}, not {{}} or {{0}}")
        return found

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        if key not in kwargs:
            raise TypeError(f"this call has no argument {key} for the name {self.text!r}")
        return kwargs[key]

    def format_field(self, value: Any, format_spec: str) -> str:
        if not isinstance(value, _ALLOWED):
            raise TypeError(
                f"{type(value).__name__} in the name {self.text!r}: use str, int, UUID, date or "
                "Enum, for a model {account.pk}"
            )
        if isinstance(value, enum.Enum):
            value = value.name
        said = format(value, format_spec) if format_spec else str(value)
        return said.translate(self.quoted)

    def of(self, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
        """The name of a call."""
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                values = {**values.pop(parameter.name), **values}
        return self.vformat(self.text, (), values)


def _between(parts: Iterable[tuple[str, str | None, Any, Any]]) -> list[str]:
    """The texts between two fields."""
    texts = [""]
    for literal, name, _, _ in parts:
        texts[-1] += literal
        if name is not None:
            texts.append("")
    return texts[1:-1]


def _quoted(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


@overload
def synchronized(
    name: str,
    limit: int = 1,
    *,
    on_full: Literal["raise"] = "raise",
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
    on_full: Literal["raise", "skip"] = "raise",
    **options: Unpack[SemaphoreOptions],
) -> Any:
    """At most `limit` calls at a time, of all calls with the same name.

    `name` is a str.format template over the call's arguments: "invoice:{pk}". `on_full`: a
    call without a permit does this: raise NotAcquired, or skip, that is return None (and not wait,
    unless a blocking_timeout is given). `options`: as Semaphore's. For any function or method, sync
    or async; TypeError for classes and generators, ValueError for a name with unknown arguments.
    """
    if callable(name):
        raise TypeError(f"@synchronized needs a name: {_named_after(name)}")
    template = _Template(name)
    if on_full not in ("raise", "skip"):
        raise ValueError(f"on_full must be 'raise' or 'skip', not {on_full!r}")
    if on_full == "skip" and "blocking_timeout" not in options:
        options.setdefault("blocking", False)
    Semaphore("probe", limit, **options)  # wrong options are refused here, not at the first call

    def decorate(function: Function) -> Function:
        _check_function(function)
        signature = inspect.signature(function)
        _check_names(template, signature, function)
        labelled: SemaphoreOptions = {"label": _label(function), **options}
        fixed = None
        if not template.fields:
            fixed = Semaphore(template.vformat(name, (), {}), limit, **labelled)

        def semaphore(args: Any, kwargs: Any) -> Semaphore:
            if fixed is not None:
                return fixed
            made = Semaphore(template.of(signature, args, kwargs), limit, **labelled)
            made.template = name
            return made

        if _is_async(function):

            @functools.wraps(function)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                guard = semaphore(args, kwargs)
                got = await guard.atake()
                if isinstance(got, Refusal):
                    return _full(guard, got, on_full)
                async with _aleaving(guard, got):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                guard = semaphore(args, kwargs)
                got = guard.take()
                if isinstance(got, Refusal):
                    return _full(guard, got, on_full)
                with _leaving(guard, got) as stack:
                    result = function(*args, **kwargs)
                    if not inspect.isawaitable(result):
                        return result
                    stack.pop_all()
                return _finish(guard, got, result)

        if not options.get("release_on_commit"):
            setattr(guarded, BEFORE_COMMIT, name)
        return guarded  # type: ignore[return-value]

    return decorate


def _leaving(guard: Semaphore, lease: Lease) -> ExitStack:
    """Leaves as the semaphore's own `with` does."""
    stack = ExitStack()
    stack.push(functools.partial(guard.leave, lease))
    return stack


def _aleaving(guard: Semaphore, lease: Lease) -> AsyncExitStack:
    stack = AsyncExitStack()
    stack.push_async_exit(functools.partial(guard.aleave, lease))
    return stack


async def _finish(guard: Semaphore, lease: Lease, result: Any) -> Any:
    """The awaitable that a sync function returned."""
    async with _aleaving(guard, lease):
        return await result


def _full(semaphore: Semaphore, refusal: Refusal, on_full: str) -> None:
    if on_full == "raise":
        raise semaphore.error_of(refusal)


def _label(function: Any) -> str:
    return f"{function.__module__}.{_said(function)}"


def _said(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def _named_after(function: Any) -> str:
    """What to write above a function that was decorated without parentheses."""
    said = _said(function).rpartition(".")[2]
    try:
        first = [word for word in inspect.signature(function).parameters if word != "self"][:1]
    except (TypeError, ValueError):
        first = []
    calls = f', or @synchronized("{said}:{{{first[0]}}}") for each {first[0]}' if first else ""
    return f'write @synchronized("{said}") for all calls of it{calls}'


def _is_async(function: Any) -> bool:
    called: Any = type(function).__call__  # of an object that is called
    return iscoroutinefunction(function) or iscoroutinefunction(called)


def _check_function(function: Any) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError("put @synchronized below @staticmethod and @classmethod")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"@synchronized is for functions and methods, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("@synchronized would give back before a generator's body ran: use `with`")


def _check_names(template: _Template, signature: inspect.Signature, function: Any) -> None:
    parameters = signature.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        template.names()
        return
    unknown = sorted(template.names() - set(signature.parameters))
    if unknown:
        raise ValueError(
            f"{_said(function)} has no argument {', '.join(unknown)} for {template.text!r}"
        )
