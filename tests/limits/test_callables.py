"""A view is whatever Django can call: each kind can be limited, and has a name that no other view
has, or needs one."""

import functools

import pytest
from asgiref.sync import async_to_sync, markcoroutinefunction, sync_to_async
from django.contrib.syndication.views import Feed
from django.core.checks import run_checks
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_redis_sync import Lock, SemaphoreRequiredMixin, semaphore_required
from tests.request_site.project import CLIENTS, arespond_ok, respond_ok, status_of

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(18)]
one = semaphore_required("one", limit=1)
unnamed = semaphore_required(limit=1)
HERE = __name__


def view(request, status=200):
    return HttpResponse(status=status)


async def aview(request):
    return HttpResponse()


class Items(Feed):
    title = link = description = "items"

    def items(self):
        return []


class Callable:
    def __call__(self, request):
        return HttpResponse()

    def page(self, request):
        return HttpResponse()

    @classmethod
    def of_class(cls, request):
        return HttpResponse()

    @staticmethod
    def static(request):
        return HttpResponse()


class AsyncCallable:
    def __init__(self):
        markcoroutinefunction(self)

    async def __call__(self, request):
        return HttpResponse()


class First:
    @classmethod
    @unnamed
    def page(cls, request):
        return HttpResponse()

    @unnamed
    @classmethod
    def below(cls, request):
        return HttpResponse()

    @unnamed
    @staticmethod
    def static(request):
        return HttpResponse()


class Second:
    @classmethod
    @unnamed
    def page(cls, request):
        return HttpResponse()


class Inherits(First):
    pass


def factory():
    def made(request):
        return HttpResponse()

    return made


def without_wraps(function):
    def inner(request):
        return function(request)

    return inner


#: Views without a name of their own.
NAMELESS = {
    "feed": Items(),
    "partial": functools.partial(view, status=200),
    "partial of a partial": functools.partial(functools.partial(view), status=200),
    "partial with a name": functools.update_wrapper(functools.partial(view, status=200), view),
    "async_to_sync": async_to_sync(aview),
    "instance": Callable(),
    "method of an instance": Callable().page,
    "lambda": lambda request: HttpResponse(),
    "function of a function": factory(),
    "decorator without wraps": without_wraps(view),
}
ASYNC = {
    "async partial": functools.partial(aview),
    "async instance": AsyncCallable(),
    "sync_to_async": sync_to_async(view),
}
#: Views with a name of their own.
NAMED = {
    f"{HERE}.view": unnamed(view),
    f"{HERE}.aview": unnamed(aview),
    f"{HERE}.Callable.of_class": unnamed(Callable.of_class),
    f"{HERE}.Callable.static": unnamed(Callable.static),
    f"{HERE}.First.page": First.page,
    f"{HERE}.First.below": First.below,
    f"{HERE}.First.static": First.static,
    f"{HERE}.Second.page": Second.page,
    f"{HERE}.Inherits.page": Inherits.page,
}


@CLIENTS
@pytest.mark.parametrize("kind", [*NAMELESS, *ASYNC])
def test_named_limit_works_on_every_kind_of_view(project, kind, asgi):
    limited = one({**NAMELESS, **ASYNC}[kind])
    project.asgi = asgi
    project.with_middleware()
    project.serve(home=limited)
    assert 200 == project.status()
    with Lock("one"):
        assert 503 == project.status()
    assert [] == run_checks(tags=["redis_sync"], include_deployment_checks=True)


@pytest.mark.parametrize("name", NAMED)
def test_unnamed_limit_has_a_name_that_no_other_view_has(project, name):
    project.with_middleware()
    project.serve(home=NAMED[name])
    with Lock(name):
        assert 503 == project.status()
    assert 200 == project.status()
    assert [] == run_checks(tags=["redis_sync"])


@pytest.mark.parametrize("kind", [*NAMELESS, "async partial", "async instance"])
def test_unnamed_limit_asks_for_a_name_if_the_view_has_none(kind):
    with pytest.raises(TypeError, match=r"can't name a semaphore: give a name"):
        unnamed({**NAMELESS, **ASYNC}[kind])


def test_unnamed_mixin_of_a_class_in_a_function_asks_for_a_name():
    class Local(SemaphoreRequiredMixin, View):
        semaphore_limit = 1
        get = staticmethod(respond_ok)

    with pytest.raises(TypeError, match="give a name"):
        Local.as_view()

    class Named(Local):
        semaphore_name = "one"

    assert 200 == status_of(Named.as_view())


def test_decorator_of_a_bound_method_with_a_limit_of_its_own_calls_the_method():
    class Site:
        @one
        def page(self, request):
            return HttpResponse()

    outer = semaphore_required("two", limit=1)(Site().page)
    assert 200 == status_of(outer)
    for name in ("one", "two"):
        with Lock(name):
            assert 503 == status_of(outer)


def test_limited_view_has_the_names_of_the_view_inside():
    assert "Items" == one(Items()).__name__
    assert f"{HERE}.view" == "{0.__module__}.{0.__qualname__}".format(one(NAMELESS["partial"]))


# The mixin changes nothing else


@method_decorator(csrf_exempt, name="dispatch")
class Exempt(View):
    get = staticmethod(respond_ok)


def mark(function):
    function.login_required = False
    function._non_atomic_requests = {"default"}
    function.anything = "else"
    return function


class Marked(View):
    get = staticmethod(arespond_ok)

    @mark
    def dispatch(self, request, *args, **kwargs):
        return super().dispatch(request, *args, **kwargs)


class Limited(SemaphoreRequiredMixin):
    semaphore_name, semaphore_limit = "one", 1


@pytest.mark.parametrize("base", [Exempt, Marked])
@pytest.mark.parametrize("decorated", [False, True])
def test_mixin_keeps_the_attributes_of_the_dispatch_of_its_base(base, decorated):
    made = type("Made", (Limited, base), {})
    if decorated:
        made = method_decorator(csrf_exempt, name="dispatch")(made)
    found = vars(made.as_view())
    lost = {key for key, value in vars(base.as_view()).items() if found.get(key) != value}
    assert {"view_class"} == lost - {"__wrapped__"}


def test_mixin_loses_attributes_where_the_class_has_a_dispatch_of_its_own():
    class Own(Limited, Exempt):
        def dispatch(self, request):
            return super().dispatch(request)

    assert not hasattr(Own.as_view(), "csrf_exempt")


class Steps(View):
    steps = ()

    @classmethod
    def as_view(cls, steps, **kwargs):
        return super().as_view(steps=steps, **kwargs)

    def get(self, request):
        return HttpResponse(",".join(self.steps))


def test_mixin_takes_the_arguments_of_the_as_view_of_its_base(project):
    class LimitedSteps(Limited, Steps):
        pass

    project.with_middleware()
    project.serve(home=LimitedSteps.as_view(["a", "b"]))
    assert b"a,b" == project.get().content
    with Lock("one"):
        assert 503 == project.status()
    assert [] == run_checks(tags=["redis_sync"])
