"""Templates of names and shares, and the functions that decorators accept."""

from __future__ import annotations

import contextlib
import functools
import inspect
import string
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, iscoroutinefunction

from .. import values
from ..protocol.keys import check_text, shortened
from .arguments import ALLOWED, own_value, text_of

T = TypeVar("T")

#: Python's exceptions if an argument of a call has no such attribute or item.
_NOT_THERE = (AttributeError, KeyError, IndexError, TypeError)


class Template(string.Formatter):
    """A str.format template that makes a name from the arguments of a call.

    Calls with different arguments get different names, because `%`, `:` and the template's
    separators are percent-encoded in the values of the arguments.
    """

    def __init__(self, text: str, what: str = "name") -> None:
        self.text, self.what = check_text(f"a {what}", text, 1000), what
        quoted, before, self.fields = {"%", ":"}, "", list[str]()
        for literal, name, spec, conversion in self._parts():
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

    def _parts(self) -> list[tuple[Any, ...]]:
        try:
            return [*self.parse(self.text)]
        except ValueError as error:
            raise ValueError(
                f"{self.text!r} is not a template of a {self.what}: {error}. A brace that is not "
                "part of an argument is written twice"
            ) from None

    @property
    def roots(self) -> set[str]:
        """The names of the arguments in the template, without attributes and items."""
        return {name.split(".")[0].split("[")[0] for name in self.fields}

    def check(self, function: Any) -> None:
        """Raise ValueError if the template has an argument that `function` doesn't have, or an
        argument without a name, such as {0}."""
        names = self.roots
        if any(not name or name.isdigit() for name in names):
            raise ValueError(f"use argument names in {self.text!r}: {{pk}}, not {{}} or {{0}}")
        parameters = signature_of(function).parameters
        wrong = names - parameters.keys()
        if wrong and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            called, missing = qualname(function), ", ".join(sorted(wrong))
            raise ValueError(f"{called} has no argument {missing} for {self.text!r}")

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        if key not in kwargs:
            raise TypeError(f"this call has no argument {key} for the {self.what} {self.text!r}")
        return kwargs[key]

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except Exception as error:
            if type(error) not in _NOT_THERE or not set(field_name) & {".", "["}:
                raise
            raise TypeError(
                f"this call has no {field_name} for the {self.what} {self.text!r}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def format_field(self, value: Any, format_spec: str) -> str:
        if not isinstance(value, ALLOWED):
            raise TypeError(
                f"{type(value).__name__} can't be used in the {self.what} {self.text!r}: use str, "
                "int, UUID, date or Enum. For a model, use its pk, such as {account.pk}"
            )
        try:
            text = format(own_value(value), format_spec) if format_spec else text_of(value)
        except ValueError as error:
            raise ValueError(f"{value!r} in the {self.what} {self.text!r}: {error}") from error
        return text.translate(self.quoted)

    def of(self, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
        """Return the name or the share for a call with these arguments."""
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"a call with the {self.what} {self.text!r}: {error}") from None
        bound.apply_defaults()
        values = dict(bound.arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given = values.pop(parameter.name)
                values = {parameter.name: given, **given, **values}  # {kwargs[pk]} or {pk}
        found = self.vformat(self.text, (), values)
        return shortened(found) if self.what == "name" else found


class ShareTemplate(Template):
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


def _is_of_contextlib(function: Any) -> bool:
    """Return True for what @contextmanager or @asynccontextmanager makes of a generator. Its call
    runs nothing of the generator."""
    return getattr(function, "__code__", None) in _MANAGERS


_makers: tuple[Any, ...] = (contextlib.contextmanager, contextlib.asynccontextmanager)
#: The code of what each of them makes.
_MANAGERS = {make(None).__code__ for make in _makers}


def qualname(function: Any) -> str:
    inner = _called_by(function)
    if inner is not function and not hasattr(function, "__qualname__"):
        return qualname(inner)
    return str(getattr(function, "__qualname__", None) or repr(function))


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature with which `function` is called."""
    if isinstance(function, partial):
        # `method_decorator` gives each partial object the attribute __wrapped__, and `inspect`
        # would return the signature of the method in it, which has `self`.
        function = partial(function.func, *function.args, **function.keywords)
    elif isinstance(function, AsyncToSync):
        function = function.awaitable  # `inspect` knows no signature of the object
    return values.signature(function)


def path_of(function: Any) -> str:
    """Return the module and the name of a function."""
    return f"{getattr(_called_by(function), '__module__', None) or '?'}.{qualname(function)}"


def wraps(function: Any) -> Callable[[T], T]:
    """As `functools.wraps`. The wrapper of a partial object, or of a result of `async_to_sync`,
    gets the name of the function that the object calls. For example, Celery names tasks after it.
    """

    def decorate(wrapper: Any) -> Any:
        functools.update_wrapper(wrapper, function)
        inner = _called_by(function)
        if inner is not function and not hasattr(function, "__name__"):
            functools.update_wrapper(wrapper, inner, updated=())
            wrapper.__wrapped__, wrapper.__signature__ = function, signature_of(function)
        return wrapper

    return decorate


def _called_by(function: Any) -> Any:
    """Return the function that a partial object, or a result of `async_to_sync`, calls."""
    while isinstance(function, (partial, AsyncToSync)):
        function = function.func if isinstance(function, partial) else function.awaitable
    return function


def is_async(function: Any) -> bool:
    called: Any = type(function).__call__  # `function` may be an object with a method __call__
    return iscoroutinefunction(function) or iscoroutinefunction(called)


def check_function(function: Any, decorator: str, generators: str) -> None:
    """Raise TypeError if a decorator can't decorate `function`. `decorator`: its name.
    `generators`: why it can't decorate a generator."""
    if hasattr(function, "delay") or hasattr(function, "enqueue"):
        raise TypeError(
            f"put @{decorator} below the decorator that turns {qualname(function)} into a task: "
            f"otherwise the worker runs the function without @{decorator}"
        )
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"put @{decorator} below @staticmethod and @classmethod")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"@{decorator} is for functions and methods, not {function!r}")
    makes = function.__wrapped__ if _is_of_contextlib(function) else function
    if inspect.isgeneratorfunction(makes) or inspect.isasyncgenfunction(makes):
        raise TypeError(f"@{decorator} {generators}")
