"""`single_flight`: a decorator that shares the result of one call with all equal calls."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.utils.decorators import method_decorator

from .. import conf, values
from ..engine.calls import Either, arun, run
from ..protocol.keys import keys_of
from .callers import may_wait
from .flights import Computing, Flight, Reading
from .results import Results
from .templates import Template, check_function, is_async, path_of, qualname, signature_of, wraps

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: The cache aliases of all decorated functions, each with a function that uses it.
aliases: dict[str, str] = {}

_GENERATORS = "can't share the result of a generator: return a list instead"
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class SingleFlight(Protocol[P, R_co]):
    """The type of a decorated function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __get__(
        self: SingleFlight[Concatenate[T, Q], R], owner: T, kind: Any = None
    ) -> SingleFlight[Q, R]: ...
    @overload  # of a class; or below @classmethod or @staticmethod, which type checkers ignore here
    def __get__(self, owner: Any, kind: Any = None) -> Any: ...
    def forget(self, *args: Any, **kwargs: Any) -> None:
        """Make the stored result of a call invalid, and that of a call that runs now. The next call
        runs the function. Raise the exception of the cache if it is down.

        Give the arguments as in the call. If the decorator ignores any, give the others by name.
        """

    async def aforget(self, *args: Any, **kwargs: Any) -> None:
        """Async version of `forget()`."""


def single_flight(
    name: str,
    *,
    ttl: float = 0,
    stale: float = 0,
    cache: str = "default",
    ignore: str | Iterable[str] = (),
    on_outage: Literal["run", "raise"] = "run",
    timeout: float | None = None,
    blocking_timeout: float | None = None,
    using: str | None = None,
    label: str | None = None,
) -> Callable[[Callable[P, R]], SingleFlight[P, R]]:
    """Run a function once for all equal calls at the same time, in all processes.

    One of the calls runs the function. The others wait and get its result. For functions and
    methods, sync and async::

        @single_flight("insight:{key}", ttl=60)
        def insight(key): ...

        insight.forget(key=7)  # in async code: await insight.aforget(key=7)

    - `name`: a `str.format` template that makes the name from the arguments of the call, as in
      `synchronized`. Calls with equal names are equal calls.
    - `ttl`: seconds for which later calls get the result without running the function. 0 (default):
      only calls that waited get it. Rounded up to whole seconds, as some caches need it.
    - `stale`: seconds after `ttl` during which a call that has waited for `blocking_timeout` gets
      the former result, while another call runs the function.
    - `cache`: alias of the cache that stores the results, with its own serializer.
    - `ignore`: names of parameters that don't change the result, such as `self`.
    - `on_outage`: what a call does if the Redis of the locks is down. "run" (default): it runs the
      function. "raise": it raises Unavailable. If the cache is down, each call runs the function.
    - `timeout`, `blocking_timeout`, `using`, `label`: as in `Lock`, with one alias in `using`.

    If the call that runs raises an exception, those that waited raise CallFailed. If it dies or is
    cancelled, one of them runs the function. A call that has waited for `blocking_timeout` seconds
    raises NotAcquired. A value that the cache can't store is returned to the call that ran, an
    error is logged, and each call that waited runs the function.

    Raise ValueError if a parameter is neither in the template nor in `ignore`, and TypeError for
    classes, generators, and wrong options.
    """
    if callable(name):
        called = qualname(name).rpartition(".")[2]
        raise TypeError(f'@single_flight needs a name: @single_flight("{called}:{{argument}}")')
    if not isinstance(using, (str, type(None))):
        raise ImproperlyConfigured(
            f"using of single_flight must be one alias, not {using!r}: a quorum has no queue"
        )
    calls = _Calls()
    calls.template, calls.cache = Template(name), values.alias("cache", cache)
    calls.ttl, calls.stale = values.finite("ttl", ttl), values.finite("stale", stale)
    calls.runs_on_outage = values.one_of("run", "raise")("on_outage", on_outage) == "run"
    calls.ignored = values.names("ignore", ignore)
    calls.options = {"timeout": timeout, "blocking_timeout": blocking_timeout, "using": using}
    Computing("probe", label=label, **calls.options)  # wrong options raise now

    def decorate(function: Callable[P, R]) -> SingleFlight[P, R]:
        check_function(function, "single_flight", _GENERATORS)
        if getattr(function, "__module__", None) == method_decorator.__module__:  # its probe
            raise TypeError(
                "put @single_flight directly on the method, without method_decorator: it is for "
                "methods, too. The name has to contain self, such as {self.pk}, or add "
                'ignore="self"'
            )
        mine = calls.of(function, label)
        aliases.setdefault(cache, path_of(function))
        shared: Any = (_shared_async if is_async(function) else _shared)(function, mine)
        shared.forget, shared.aforget = mine.forget, mine.aforget
        return shared  # type: ignore[no-any-return]

    return decorate


class _Calls:
    """The options of the decorator, and the calls of a decorated function."""

    template: Template
    cache: str
    ttl: float
    stale: float
    runs_on_outage: bool
    ignored: tuple[str, ...]
    options: dict[str, Any]
    signature: inspect.Signature

    def of(self, function: Any, label: str | None) -> _Calls:
        """Return the calls of a function. Raise ValueError if two different calls could share a
        result."""
        self.template.check(function)
        mine = copy.copy(self)
        mine.signature = signature_of(function)
        mine._check_parameters(qualname(function))
        mine.options = {
            **self.options,
            "label": label or path_of(function),
        }
        return mine

    def _check_parameters(self, called: str) -> None:
        parameters, text = self.signature.parameters, self.template.text
        if unknown := [name for name in self.ignored if name not in parameters]:
            raise ValueError(f"{called} has no parameter {unknown[0]} to ignore")
        for name, parameter in parameters.items():
            if name in self.ignored:
                if name in self.template.roots and parameter.kind not in _ANY:
                    raise ValueError(f"{called}: {name} is in {text!r}, and also in ignore")
            elif parameter.kind in _ANY:
                raise ValueError(
                    f"{called}: calls with different *{name} would share a result under the name "
                    f'{text!r}. Replace it by parameters, or add ignore="{name}"'
                )
            elif name not in self.template.roots:
                raise ValueError(
                    f"{called}: calls with different {name} would share a result, because {text!r} "
                    f'doesn\'t contain it. Add {{{name}}} to the name, or add ignore="{name}"'
                )

    def flight(self, args: Any, kwargs: Any, call: Either) -> Flight:
        """Return the Flight of a call. `call`: the step that runs the function."""
        name = self.template.of(self.signature, args, kwargs)
        return Flight(name, self._sides, self._results(name), call, self.runs_on_outage)

    def _sides(self, name: str) -> tuple[Computing, Reading]:
        computing = Computing(name, **self.options)
        reading = Reading(name, **{**self.options, "timeout": Reading.SECONDS})
        if self.template.fields:
            computing._template = reading._template = self.template.text
        return computing, reading

    def _results(self, name: str) -> Results:
        using = self.options["using"] or conf.current().cache
        keys = keys_of(conf.current().prefix(using), name)
        return Results(self.cache, (using, keys.leases), self.ttl, self.stale)

    def _forgotten(self, args: Any, kwargs: Mapping[str, Any]) -> Results:
        """Return the results to forget."""
        signature = self.signature
        if self.ignored:
            if args:
                raise TypeError(
                    "forget() takes arguments by name only, because single_flight ignores "
                    f"{', '.join(self.ignored)}"
                )
            kwargs = {name: value for name, value in kwargs.items() if name not in self.ignored}
            signature = signature.replace(parameters=[*self._named()])
        return self._results(self.template.of(signature, args, kwargs))

    def _named(self) -> Iterator[inspect.Parameter]:
        """Yield the parameters that are not ignored, as keyword-only parameters."""
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:  # the template can have some of its keys
                yield parameter
            elif name not in self.ignored:
                yield parameter.replace(kind=parameter.KEYWORD_ONLY)

    def forget(self, /, *args: Any, **kwargs: Any) -> None:
        """Make the stored result of a call invalid, and that of a call that runs now."""
        self._forgotten(args, kwargs).forget()

    async def aforget(self, /, *args: Any, **kwargs: Any) -> None:
        """Async version of `forget()`."""
        await sync_to_async(self._forgotten(args, kwargs).forget)()


def _shared(function: Any, calls: _Calls) -> Any:
    @wraps(function)
    def shared(*args: Any, **kwargs: Any) -> Any:
        if not may_wait():  # also if the result is stored: a later call would have to wait
            raise SynchronousOnlyOperation(
                f"{qualname(function)} is sync, and would stop this event loop while it waits for "
                "an equal call. Call it with sync_to_async, or decorate an `async def` function"
            )

        def call() -> Any:
            result = function(*args, **kwargs)
            if not inspect.isawaitable(result):
                return result
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                f"{qualname(function)} returned an awaitable, which can't be shared: decorate an "
                "`async def` function"
            )

        return run(calls.flight(args, kwargs, Either(call, None)).plan())

    return shared


def _shared_async(function: Any, calls: _Calls) -> Any:
    @wraps(function)
    async def shared(*args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            return function(*args, **kwargs)

        return await arun(calls.flight(args, kwargs, Either(None, call)).plan())

    return shared
