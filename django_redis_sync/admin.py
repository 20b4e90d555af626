"""The model admin of locks and semaphores, with its permissions and the URLs of its pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.views.decorators.csrf import csrf_exempt

from .console import views
from .models import Name


@admin.register(Name)
class NameAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # has no parameters at runtime
    """The admin pages of locks and semaphores. To add them to another admin site, call
    `site.register(Name, NameAdmin)`."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may_manage(request) or self._has_permission(request, "view_locks")

    def _never(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never

    def may_manage(self, request: HttpRequest) -> bool:
        """Return True if the user may release, pause, and resize locks and semaphores."""
        return self._has_permission(request, "manage_locks")

    def _has_permission(self, request: HttpRequest, codename: str) -> bool:
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.{codename}"))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Name | None:
        """Return the `Name` with this id, without a database query. Return None if the id is not
        valid."""
        return Name.find(object_id)

    def get_urls(self) -> list[URLPattern]:
        def own(route: str, name: str, view: Any, **options: Any) -> URLPattern:
            info = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
            return path(route, self._page(view), options, name=info)

        return [
            own("live/", "live", views.list_page, live=True),
            own("data/", "data", views.data_list),
            own("<str:object_id>/live/", "live_name", views.name_page, live=True),
            own("<str:object_id>/data/", "data_name", views.data_name),
            own("<str:object_id>/act/<str:verb>/", "act", views.act),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return views.list_page(self, request)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        return views.name_page(self, request, unquote(object_id))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        context = {**(extra_context or {})}
        if self.has_view_permission(request) and self.get_object(request, unquote(object_id)):
            context |= views.actions_log(unquote(object_id))
        return super().history_view(request, object_id, context)

    def _page(self, view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        """Wrap a view as a page of this admin site. Only staff can open the page. It has CSRF
        protection, and it is never cached."""

        def for_staff(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
            if "object_id" in kwargs:
                kwargs["object_id"] = unquote(kwargs["object_id"])
            return view(self, request, **kwargs)

        guarded = self.admin_site.admin_view(for_staff)  # checks login and CSRF

        # `admin_view` checks the CSRF token. The CSRF middleware must not check the token earlier:
        # with CSRF_USE_SESSIONS, it would answer 403 if the session has ended.
        @csrf_exempt
        def page(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
            if request.method == "POST" and not self.admin_site.has_permission(request):
                # The session has ended. After the login, the confirmation page opens with the
                # fields that were sent.
                login = reverse("admin:login", current_app=self.admin_site.name)
                return redirect_to_login(views.confirm_url(request), login)
            return guarded(request, **kwargs)

        page.model_admin = self  # type: ignore[attr-defined]  # as on Django's own pages
        return update_wrapper(page, view, updated=())
