"""The HTTP views of the admin pages. Each action requires a confirmation by POST, and is logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Protocol

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import Error, router, transaction
from django.http import Http404, HttpRequest, HttpResponseBase, HttpResponseNotAllowed, JsonResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from .. import conf
from ..engine.server import server_of
from ..exceptions import SyncError
from ..logs import logger
from ..models import Name
from ..operators import audit
from ..operators.facts import Status
from ..operators.formats import local, without_secrets
from ..operators.names import count_keys, is_known
from ..operators.reads import remembered
from ..operators.status import MAX_ROWS, statuses
from . import confirm, pages


class Owner(Protocol):
    """The parts of `NameAdmin` that the pages need."""

    admin_site: AdminSite
    opts: Any

    def has_view_permission(self, request: HttpRequest) -> bool: ...
    def may_manage(self, request: HttpRequest) -> bool: ...


class PageError(Exception):
    """Redis is unavailable, or the settings are wrong. `message`: the cause, without passwords.
    `remedy`: what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message, self.remedy = without_secrets(message), remedy


@contextmanager
def page_errors() -> Iterator[None]:
    """Check the connection settings, then run the block. If the check or the block fails because
    of Redis or the settings, raise PageError."""
    try:
        conf.require_redis("this page")
        server_of(conf.current().cache).pool()
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


View = Callable[..., HttpResponseBase]


def page(*methods: str, as_json: bool = False) -> Callable[[View], View]:
    """Return a decorator that requires the view permission and one of `methods`. If Redis or the
    settings cause an error, the decorated view explains the error, as JSON or as a page."""

    def decorate(view: View) -> View:
        @wraps(view)
        def inner(own: Owner, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            if not own.has_view_permission(request):
                raise PermissionDenied
            try:
                with page_errors():
                    return view(own, request, *args, **kwargs)
            except PageError as error:
                if as_json:
                    data = {"error": error.message, "remedy": error.remedy}
                    return JsonResponse(data, status=503)
                # The link to try again contains the form fields of the failed request.
                again = confirm_url(request) if request.method == "POST" else ""
                context = {"broken": error, "again": again}
                return _render(own, request, "broken", context, bool(kwargs.get("live")), 503)

        return inner

    return decorate


@page("GET", "HEAD")
def list_page(own: Owner, request: HttpRequest, live: bool = False) -> HttpResponseBase:
    with remembered(live=live):
        context = {"listing": pages.listing(_wanted(request))}
        if not live:
            context["health"] = pages.health()
    return _render(own, request, "list", context, live)


@page("GET", "HEAD")
def name_page(
    own: Owner, request: HttpRequest, object_id: str, live: bool = False
) -> HttpResponseBase:
    entry = _entry(object_id)
    with remembered(live=live):
        status = _status(entry)
        context = {"status": status, "detail": pages.detail(status, _wanted(request, status.name))}
    if status.key is not None:
        context["policy"] = Name.of(status.name)
    return _render(own, request, "name", {"original": entry, **context}, live)


@page("GET", "HEAD", as_json=True)
def data_list(own: Owner, request: HttpRequest) -> HttpResponseBase:
    """Return the list of names as JSON. This view takes the same query parameters as the list
    page."""
    return JsonResponse(pages.data(_wanted(request)))


@page("GET", "HEAD", as_json=True)
def data_name(own: Owner, request: HttpRequest, object_id: str) -> HttpResponseBase:
    """Return a name as JSON, with its keys if it is a policy."""
    status = _status(_entry(object_id))
    return JsonResponse(pages.data_of(status, _wanted(request, status.name)))


@page("GET", "HEAD", "POST")
def act(own: Owner, request: HttpRequest, object_id: str, verb: str) -> HttpResponseBase:
    """Show the confirmation page of an action. On POST, carry out the action."""
    if not own.may_manage(request):
        raise PermissionDenied
    if verb not in confirm.ACTIONS:
        raise Http404
    entry = _entry(object_id)
    status = _status(entry, pages.ALL_ROWS)
    sent = request.POST if request.method == "POST" else None
    action = confirm.ACTIONS[verb](sent, initial=request.GET.dict(), label_suffix="")
    holders = action.holders(status) if isinstance(action, confirm.Clear) else []
    change = f"admin:{own.opts.app_label}_{own.opts.model_name}_change"
    back = reverse(change, args=[quote(entry.id)], current_app=own.admin_site.name)
    title = str(action.title) % {"name": status.display}
    if isinstance(action, confirm.Clear) and not holders:
        messages.warning(request, confirm.ENDED)
        return redirect(back)
    if action.is_valid():
        try:
            with page_errors():
                level, message = action.run(status, request.user.get_username())
        except PageError as error:
            text = _("The action “%(action)s” failed. %(error)s")
            level, message = messages.ERROR, text % {"action": title, "error": error.message}
        messages.add_message(request, level, message)
        if not _log(request, entry, f"{message} {action.cleaned_data['reason']}".strip()):
            text = _("The site’s database could not record the action.")
            messages.warning(request, text)
        return redirect(back)
    context = {
        "title": _("%(action)s?") % {"action": title},
        "button": title,
        "action": action,
        "status": status,
        # The number of keys, if the name is a policy. The action applies to all of its keys.
        "keys": 0 if status.key is not None else count_keys([status.name])[status.name],
        "holders": [pages.holder_row(status, holder) for holder in holders[:MAX_ROWS]],
        "more": max(0, len(holders) - MAX_ROWS),
        "original": entry,
        "back": back,
    }
    return _render(own, request, "confirm", context)


def confirm_url(request: HttpRequest) -> str:
    """Return the URL of the confirmation page. Its query string has the request's form fields."""
    fields = request.POST.copy()
    fields.pop("csrfmiddlewaretoken", None)
    return f"{request.path}?{fields.urlencode()}"


def actions_log(object_id: str) -> dict[str, Any]:
    """Return the recorded actions on a name for its history page. If Redis can't be read, return
    the text of the error. The page then still shows the entries from the site's database."""
    name, key = _entry(object_id).parts
    try:
        with page_errors():
            acts = audit.acts(name, key)
            return {"acts": [replace(act, at=local(act.at)) for act in acts]}
    except PageError as error:
        return {"unread": error.message}


# Parts


def _entry(object_id: str) -> Name:
    """Return the `Name` for the id in a URL. Raise Http404 if the id is not valid."""
    entry = Name.find(object_id)
    if entry is None:
        raise Http404
    return entry


def _status(entry: Name, rows: int = MAX_ROWS) -> Status:
    """Return the status of a name. Raise Http404 if the name is not known."""
    (status,) = statuses([entry.parts], rows=rows)
    if not status.used and not is_known(*entry.parts):
        raise Http404(_("No lock or semaphore of this name is known."))
    return status


def _wanted(request: HttpRequest, policy: str | None = None) -> pages.Wanted:
    get = request.GET.get
    history = get("history", "") if policy is not None else ""
    return pages.Wanted(get("q", "").strip(), get("o", ""), get("p", "1"), policy, history)


def _render(
    own: Owner,
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    live: bool = False,
    status: int | None = None,
) -> HttpResponseBase:
    """Return a page. If `live` is True, return only the part of the page that refreshes itself."""
    text = _("Locks and semaphores")
    # If this app has no translation for the site's language, its texts are English. Then the
    # template marks them as English, which runs from left to right.
    untranslated = text == "Locks and semaphores"
    words = {
        "title": str(context.get("original", text)),
        "opts": own.opts,
        "query": f"?{request.GET.urlencode()}" if request.GET else "",
        "may_manage": own.may_manage(request),
        "in_english": untranslated and not (get_language() or "en").startswith("en"),
    }
    whole = {} if live else own.admin_site.each_context(request)
    name = f"admin/django_redis_sync/{'_' if live else ''}{template}.html"
    return TemplateResponse(request, name, {**whole, **words, **context}, status=status)


def _log(request: HttpRequest, entry: Name, message: str) -> bool:
    """Record an action in the log of Django's admin. If the database fails, for example because it
    is read-only, log an error and return False. The action is done, and Redis has its record."""
    try:
        # If the request has a transaction, an error of the database must not break it.
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            LogEntry.objects.create(
                user_id=request.user.pk,
                content_type_id=ContentType.objects.get_for_model(Name).pk,
                object_id=entry.id,
                object_repr=str(entry)[:200],
                action_flag=CHANGE,
                change_message=message,
            )
    except Error:
        logger.exception("the site's database could not record the operator action on %s", entry)
        return False
    return True
