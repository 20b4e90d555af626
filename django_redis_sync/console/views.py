"""The admin's pages and actions over HTTP. Every action is a POST, confirmed, and logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
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

from .. import conf
from ..models import Name
from ..operators import audit, doctor
from ..operators.listing import FIGURES
from ..operators.status import MOST_ROWS, Status
from . import acting, pages
from .broken import Broken, asking

#: Minutes of history that a visitor can choose from; the longest is the history kept.
SHORT = 60


class Owner(Protocol):
    """The parts of their ModelAdmin that the pages need."""

    admin_site: AdminSite
    opts: Any

    def has_view_permission(self, request: HttpRequest) -> bool: ...
    def may_manage(self, request: HttpRequest) -> bool: ...


P = ParamSpec("P")
View = Callable[Concatenate[Owner, HttpRequest, P], HttpResponseBase]


def page(*methods: str) -> Callable[[View[P]], View[P]]:
    """A page behind the permission to see; it stays up when Redis is down."""

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
                return view(own, request, *args, **kwargs)
            except Broken as broken:
                if view.__name__.startswith("data"):
                    said = {"error": broken.said, "remedy": broken.remedy}
                    return JsonResponse(said, status=503)
                template = "_broken" if view.__name__.startswith("live") else "broken"
                context = {"broken": broken, "title": _("Locks and semaphores")}
                if request.method == "POST":
                    # The query is kept, so that nothing has to be typed again.
                    context |= {"again": _asked(request), **_wish(request, kwargs)}
                return _render(own, request, template, context, status=503)

        return wrapper

    return decorate


@page("GET", "HEAD")
def list_page(own: Owner, request: HttpRequest) -> HttpResponseBase:
    context = _list_context(own, request)
    context |= {"title": _("Locks and semaphores"), "findings": _findings()}
    return _render(own, request, "list", context)


@page("GET", "HEAD")
def live_list(own: Owner, request: HttpRequest) -> HttpResponseBase:
    return _render(own, request, "_list", _list_context(own, request))


@page("GET", "HEAD")
def name_page(own: Owner, request: HttpRequest, object_id: str) -> HttpResponseBase:
    context = _name_context(own, request, object_id)
    return _render(own, request, "name", {**context, "findings": _findings()})


@page("GET", "HEAD")
def live_name(own: Owner, request: HttpRequest, object_id: str) -> HttpResponseBase:
    return _render(own, request, "_name", _name_context(own, request, object_id))


@page("GET", "HEAD")
def data_list(own: Owner, request: HttpRequest) -> HttpResponseBase:
    """The list for machines; it takes the same query as the page."""
    with asking():
        return JsonResponse(pages.data(_wanted(request)))


@page("GET", "HEAD")
def data_name(own: Owner, request: HttpRequest, object_id: str) -> HttpResponseBase:
    """A name for machines, with its keys when it is a policy."""
    status = _found(object_id, MOST_ROWS)
    with asking():
        return JsonResponse(pages.data_of(status, _wanted(request, status.name)))


@page("POST")
def act(own: Owner, request: HttpRequest, object_id: str, verb: str) -> HttpResponseBase:
    """The confirm page of an action, and with `confirm` in the form the action itself."""
    if not own.may_manage(request):
        raise PermissionDenied
    if verb not in acting.VERBS:
        raise Http404
    status = _found(object_id, pages.ALL_ROWS)
    back = _url(own, "change", quote(object_id))
    try:
        with asking():
            deed = acting.prepare(verb, status, request.POST)
    except ValueError as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(back)
    if "confirm" in request.POST:
        by, reason = request.user.get_username(), request.POST.get("reason", "").strip()
        level, said = _carry_out(deed, acting.Author(by=by, reason=reason))
        messages.add_message(request, level, said)
        _log(request, object_id, f"{said} {reason}".strip())
        return HttpResponseRedirect(back)
    context = {"deed": deed, "status": status, "original": _entry(object_id), "title": deed.title}
    return _render(own, request, "confirm", {**context, "back": back})


def _carry_out(deed: acting.Deed, author: acting.Author) -> acting.Outcome:
    try:
        with asking():
            return deed.perform(author)
    except Broken as broken:
        words = {"title": deed.title, "error": broken.said}
        return messages.ERROR, _("%(title)s That failed: %(error)s") % words


def acts_of(object_id: str) -> dict[str, Any]:
    """The record of acts on the page of a name's history: nothing when it can't be read, for the
    part in this site's database is shown all the same."""
    name, key = _entry(object_id).parts
    try:
        with asking():
            return {"acts": audit.acts(name, key)}
    except Broken as broken:
        return {"unread": broken.said}


# Parts


def _asked(request: HttpRequest) -> list[tuple[str, str]]:
    """The fields of a form, to be sent once more."""
    fields = ((name, value) for name, some in request.POST.lists() for value in some)
    return [(name, str(value)) for name, value in fields if name != "csrfmiddlewaretoken"]


def _wish(request: HttpRequest, given: Mapping[str, Any]) -> dict[str, str]:
    """The query in words; its names need not be known."""
    words = {
        "name": str(Name(id=given["object_id"])),
        "limit": request.POST.get("limit", "").strip(),
    }
    said = {
        "pause": _("Pause %(name)s"),
        "resume": _("Resume %(name)s"),
        "reset": _("Reset the limit of %(name)s"),
        "resize": _("Set the limit of %(name)s to %(limit)s"),
    }
    return {"wish": said.get(given["verb"], _("Release holders of %(name)s")) % words}


def _entry(object_id: str) -> Name:
    """The entry of an id; 404 when no name is written so."""
    entry = Name(id=object_id)
    try:
        entry.parts  # noqa: B018
    except ValueError:
        raise Http404 from None
    return entry


def _found(object_id: str, rows: int) -> Status:
    """The status of a name of ours; 404 for anything else."""
    name, key = _entry(object_id).parts
    with asking():
        status = pages.find(name, key, rows)
    if status is None:
        raise Http404(_("No lock or semaphore of this name is known."))
    return status


def _findings() -> dict[str, list[doctor.Finding]]:
    with asking():
        found = doctor.examine()
    wrong = [finding for finding in found if finding.level != "ok"]
    return {"wrong": wrong, "fine": [finding for finding in found if finding.level == "ok"]}


def _wanted(request: HttpRequest, policy: str | None = None) -> pages.Wanted:
    get = request.GET.get
    return pages.Wanted(get("q", "").strip(), get("o", ""), get("p", "1"), policy)


def _list_context(own: Owner, request: HttpRequest) -> dict[str, Any]:
    with asking():
        listing = pages.listing(_wanted(request))
    return {"listing": listing, "links": _links(listing, {}), **_live(own, request, "live")}


def _name_context(own: Owner, request: HttpRequest, object_id: str) -> dict[str, Any]:
    entry = _entry(object_id)
    status = _found(object_id, MOST_ROWS)
    with asking():
        longest = max(SHORT, conf.current().keep(status.key))
        minutes = longest if request.GET.get("history") == "all" else SHORT
        detail = pages.detail(status, minutes, _wanted(request, status.name))
    kept = {"history": "all"} if minutes > SHORT else {}
    return {
        "detail": detail,
        "status": status,
        "original": entry,
        "title": str(entry),
        "longest": longest // 60 if longest > SHORT else 0,
        "links": _links(detail.listing, kept) if detail.listing else {},
        "acts": {verb: _url(own, "act", quote(entry.id), verb) for verb in acting.VERBS},
        "policy": Name.of(status.name) if status.key is not None else None,
        **_live(own, request, "live_name", quote(entry.id)),
    }


def _live(own: Owner, request: HttpRequest, name: str, *args: str) -> dict[str, Any]:
    query = request.GET.urlencode()
    url = _url(own, name, *args)
    return {"live_url": f"{url}?{query}" if query else url, "may_manage": own.may_manage(request)}


def _links(listing: pages.Listing, kept: dict[str, str]) -> dict[str, Any]:
    """The addresses behind the headers and the page numbers, as they keep the rest of the query."""
    wanted = listing.wanted
    kept = {**kept, **({"q": wanted.query} if wanted.query else {})}

    def link(**changes: str) -> str:
        return "?" + urlencode({**kept, **changes})

    page, sort = listing.page, {}
    for field in ("name", *FIGURES):
        now = wanted.order == field
        down = (field == "name") == wanted.order.startswith("-")
        sort[field] = {
            "url": link(o=f"-{field}" if now else field),
            "aria": ("descending" if down else "ascending")
            if wanted.order.lstrip("-") == field
            else "none",
        }
    return {
        "sort": sort,
        "recent": link(o="recent"),
        "previous": link(o=wanted.order, p=str(page.number - 1)) if page.has_previous() else "",
        "next": link(o=wanted.order, p=str(page.number + 1)) if page.has_next() else "",
        "kept": kept,
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
    """Whether our texts are, for want of a translation into the page's language: then they are
    written from left to right in any language."""
    translated = _("Locks and semaphores") != "Locks and semaphores"
    return not translated and not (get_language() or "en").startswith("en")


def _log(request: HttpRequest, object_id: str, said: str) -> None:
    LogEntry.objects.create(
        user_id=request.user.pk,
        content_type_id=ContentType.objects.get_for_model(Name).pk,
        object_id=object_id,
        object_repr=str(Name(id=object_id))[:200],
        action_flag=CHANGE,
        change_message=said,
    )
