"""The HTTP views of the admin pages. Each action is confirmed on a page, by POST, and logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    JsonResponse,
)
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from .. import conf
from ..engine.clients import forget
from ..engine.server import server_of
from ..exceptions import SyncError
from ..models import Name
from ..operators import actions
from ..operators.facts import Status
from ..operators.formats import without_secrets
from ..operators.listing import FIGURES
from ..operators.reads import remembered
from ..operators.status import MAX_ROWS
from . import confirm, pages


class Owner(Protocol):
    """The parts of `NameAdmin` that the pages need."""

    admin_site: AdminSite
    opts: Any

    def has_view_permission(self, request: HttpRequest) -> bool: ...
    def may_manage(self, request: HttpRequest) -> bool: ...


class PageError(Exception):
    """Redis is unavailable, or the settings are wrong. `message` contains no password."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message, self.remedy = without_secrets(message), remedy


@contextmanager
def page_errors() -> Iterator[None]:
    """Raise `PageError` for an error of Redis or of the settings."""
    try:
        _check_connection_settings()
        yield
    except ImproperlyConfigured as error:
        remedy = _("Correct REDIS_SYNC or CACHES in the settings, then restart the site.")
        raise PageError(str(error), remedy) from error
    except (SyncError, RedisError) as error:
        remedy = _(
            "Check that the server is running and that the LOCATION of the cache is correct. Then "
            "reload this page. For details, run “manage.py locks doctor”."
        )
        raise PageError(str(error), remedy) from error


def _check_connection_settings() -> None:
    alias = conf.current().cache
    try:
        server_of(alias).pool()
    except RedisError:
        raise
    except Exception as error:
        forget(alias)
        if isinstance(error, ImproperlyConfigured):
            raise
        # The messages of django-redis and redis-py may contain a password.
        message = _("The connection settings can’t be used (%(kind)s).")
        raise ImproperlyConfigured(message % {"kind": type(error).__name__}) from None


P = ParamSpec("P")
View = Callable[Concatenate[Owner, HttpRequest, P], HttpResponseBase]


def page(*methods: str, template: str = "broken") -> Callable[[View[P]], View[P]]:
    """Return a decorator that requires the view permission and one of `methods`. If Redis is
    unavailable, it shows `template`, or JSON if `template` is empty."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def wrapper(
            own: Owner, request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs
        ) -> HttpResponseBase:
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            if not own.has_view_permission(request):
                raise PermissionDenied
            try:
                with page_errors():
                    return view(own, request, *args, **kwargs)
            except PageError as error:
                if not template:
                    data = {"error": error.message, "remedy": error.remedy}
                    return JsonResponse(data, status=503)
                context = {"broken": error, "title": _("Locks and semaphores")}
                # The link to try again contains the fields that were sent.
                context["again"] = confirm_url(request) if request.method == "POST" else ""
                return _render(own, request, template, context, status=503)

        return wrapper

    return decorate


@page("GET", "HEAD")
def list_page(own: Owner, request: HttpRequest) -> HttpResponseBase:
    context = {"title": _("Locks and semaphores"), "health": pages.health()}
    return _render(own, request, "list", {**_list_context(own, request), **context})


@page("GET", "HEAD", template="_broken")
def live_list(own: Owner, request: HttpRequest) -> HttpResponseBase:
    with remembered(live=True):
        return _render(own, request, "_list", _list_context(own, request))


@page("GET", "HEAD")
def name_page(own: Owner, request: HttpRequest, object_id: str) -> HttpResponseBase:
    with remembered():
        return _render(own, request, "name", _name_context(own, request, object_id))


@page("GET", "HEAD", template="_broken")
def live_name(own: Owner, request: HttpRequest, object_id: str) -> HttpResponseBase:
    with remembered(live=True):
        return _render(own, request, "_name", _name_context(own, request, object_id))


@page("GET", "HEAD", template="")
def data_list(own: Owner, request: HttpRequest) -> HttpResponseBase:
    """Return the list as JSON. It takes the same query as the page."""
    return JsonResponse(pages.data(_wanted(request)))


@page("GET", "HEAD", template="")
def data_name(own: Owner, request: HttpRequest, object_id: str) -> HttpResponseBase:
    """Return a name as JSON, with its keys if it is a policy."""
    status = _status(object_id)
    return JsonResponse(pages.data_of(status, _wanted(request, status.name)))


@page("GET", "HEAD", "POST")
def act(own: Owner, request: HttpRequest, object_id: str, verb: str) -> HttpResponseBase:
    """Show the confirm page of an action. By POST, carry it out."""
    if not own.may_manage(request):
        raise PermissionDenied
    if verb not in confirm.ACTIONS:
        raise Http404
    status = _status(object_id, pages.ALL_ROWS)
    back = _url(own, "change", quote(object_id))
    sent = request.POST if request.method == "POST" else None
    action = confirm.ACTIONS[verb](sent, initial=request.GET.dict(), label_suffix="")
    holders = action.holders(status)
    if verb in confirm.EVICTING and not holders:
        messages.warning(request, confirm.already_ended())
        return HttpResponseRedirect(back)
    if action.is_valid():
        level, message = _run(action, status, request.user.get_username())
        messages.add_message(request, level, message)
        _log(request, object_id, f"{message} {action.cleaned_data['reason']}".strip())
        return HttpResponseRedirect(back)
    context = {
        "action": action,
        "button": str(action.title) % {"name": status.display},
        "status": status,
        "keys": pages.number_of_keys(status),
        "holders": [pages.holder_row(status, holder) for holder in holders[:MAX_ROWS]],
        "more": max(0, len(holders) - MAX_ROWS),
        "original": _entry(object_id),
        "back": back,
    }
    title = _("%(action)s?") % {"action": context["button"]}
    return _render(own, request, "confirm", {**context, "title": title})


def _run(action: confirm.Action, status: Status, by: str) -> confirm.Outcome:
    try:
        with page_errors():
            return action.run(status, by)
    except PageError as error:
        words = {"action": str(action.title) % {"name": status.display}, "error": error.message}
        return messages.ERROR, _("%(action)s: this failed. %(error)s") % words


def confirm_url(request: HttpRequest) -> str:
    """Return the address of the confirm page with the fields that were sent to it."""
    fields = request.POST.copy()
    fields.pop("csrfmiddlewaretoken", None)
    return f"{request.path}?{fields.urlencode()}"


def actions_log(object_id: str) -> dict[str, Any]:
    """Return the actions on a name for its history page. If they can't be read, return the error.
    The page also has entries from the site's database."""
    name, key = _entry(object_id).parts
    try:
        with page_errors():
            return {"acts": actions.acts(name, key)}
    except PageError as error:
        return {"unread": error.message}


# Parts


def _entry(object_id: str) -> Name:
    """Return the entry of an id. Raise Http404 if it is not a valid id."""
    entry = Name(id=object_id)
    try:
        entry.parts  # noqa: B018
    except ValueError:
        raise Http404 from None
    return entry


def _status(object_id: str, rows: int = MAX_ROWS) -> Status:
    """Return the status of a name. Raise Http404 if the name is not known."""
    name, key = _entry(object_id).parts
    status = pages.find(name, key, rows)
    if status is None:
        raise Http404(_("No lock or semaphore of this name is known."))
    return status


def _wanted(request: HttpRequest, policy: str | None = None) -> pages.Wanted:
    get = request.GET.get
    return pages.Wanted(get("q", "").strip(), get("o", ""), get("p", "1"), policy)


def _list_context(own: Owner, request: HttpRequest) -> dict[str, Any]:
    listing = pages.listing(_wanted(request))
    return {"listing": listing, "links": _links(listing), **_live(own, request, "live")}


def _name_context(own: Owner, request: HttpRequest, object_id: str) -> dict[str, Any]:
    entry = _entry(object_id)
    status = _status(object_id)
    detail = pages.detail(status, _wanted(request, status.name), request.GET.get("history", ""))
    return {
        "detail": detail,
        "status": status,
        "original": entry,
        "title": str(entry),
        "links": _links(detail.listing, detail.minutes > pages.SHORT) if detail.listing else {},
        "acts": {verb: _url(own, "act", quote(entry.id), verb) for verb in confirm.ACTIONS},
        "policy": Name.of(status.name) if status.key is not None else None,
        **_live(own, request, "live_name", quote(entry.id)),
    }


def _live(own: Owner, request: HttpRequest, name: str, *args: str) -> dict[str, Any]:
    query = request.GET.urlencode()
    url = _url(own, name, *args)
    return {"live_url": f"{url}?{query}" if query else url, "may_manage": own.may_manage(request)}


def _links(listing: pages.Listing, history: bool = False) -> dict[str, Any]:
    """Return the links of the headers and of the page numbers, with the rest of the query."""
    wanted = listing.wanted
    kept = {"history": "all"} if history else {}
    kept |= {"q": wanted.query} if wanted.query else {}

    def link(**changes: str) -> str:
        return "?" + urlencode({**kept, **changes})

    page, sort = listing.page, {}
    for field in ("name", *FIGURES):
        down = (field == "name") == wanted.order.startswith("-")
        sort[field] = {
            "url": link(o=f"-{field}" if wanted.order == field else field),
            "aria": ("descending" if down else "ascending")
            if wanted.order.lstrip("-") == field
            else "none",
        }
    return {
        "sort": sort,
        "recent": link(o="recent"),
        "trouble": link(o="trouble"),
        "previous": link(o=wanted.order, p=str(page.number - 1)) if page.has_previous() else "",
        "next": link(o=wanted.order, p=str(page.number + 1)) if page.has_next() else "",
    }


def _url(own: Owner, name: str, *args: str) -> str:
    info = f"admin:{own.opts.app_label}_{own.opts.model_name}_{name}"
    return reverse(info, args=args, current_app=own.admin_site.name)


def _render(
    own: Owner,
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    status: int | None = None,
) -> HttpResponse:
    whole = (
        context if template.startswith("_") else {**own.admin_site.each_context(request), **context}
    )
    return TemplateResponse(
        request,
        f"admin/django_redis_sync/{template}.html",
        {"opts": own.opts, "in_english": _in_english(), **whole},
        status=status,
    )


def _in_english() -> bool:
    """Return True if the page's language has no translation of these pages. Their texts are then
    English and run from left to right."""
    translated = _("Locks and semaphores") != "Locks and semaphores"
    return not translated and not (get_language() or "en").startswith("en")


def _log(request: HttpRequest, object_id: str, message: str) -> None:
    LogEntry.objects.create(
        user_id=request.user.pk,
        content_type_id=ContentType.objects.get_for_model(Name).pk,
        object_id=object_id,
        object_repr=str(Name(id=object_id))[:200],
        action_flag=CHANGE,
        change_message=message,
    )
