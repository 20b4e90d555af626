"""Operators' actions in the admin, and the admin's pages if Redis is down or a setting is wrong."""

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from django_redis_sync import Lease, LeaseLost, Semaphore
from django_redis_sync.exceptions import Unavailable
from tests.behaviour.both import eventually
from tests.support.operators import has_free_permit, locks
from tests.support.pages import LIST, client_of, get, unreachable_redis

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.promise(26),
]

ACTIONS = ("release", "clear", "pause", "resume", "resize", "rate", "reset")
ENDED = "The lease had already ended. Nothing was done."
urlpatterns = [
    path("admin/", admin.site.urls),
    path("plain/", lambda request: HttpResponse("plain")),
]


@pytest.fixture
def manager() -> Client:
    return client_of("manage_locks")


@pytest.fixture
def lease() -> Lease:
    """Return a permanent lease of one permit of `exports`. The limit of `exports` is 2."""
    return Semaphore("exports", 2, timeout=math.inf, label="nightly_report").acquire()


def act(client: Client, action: str, **fields: object) -> str:
    """Submit the form of an action on `exports`. Return the last message that the admin shows."""
    response = client.post(f"{LIST}exports/act/{action}/", fields)
    assert (302, f"{LIST}exports/change/") == (response.status_code, response.get("Location"))
    return [str(message) for message in get_messages(response.wsgi_request)][-1]


def unchanged(lease: Lease) -> bool:
    status = Semaphore("exports", 2).status()
    logged = LogEntry.objects.exists() or json.loads(locks("log", "--format", "json"))
    return lease.owned() and not status.paused and status.override is None and not logged


# Permission and confirmation


@pytest.mark.parametrize("action", ACTIONS)
def test_get_request_carries_out_no_action(manager: Client, lease: Lease, action: str) -> None:
    page = get(manager, f"exports/act/{action}/?fence={lease.fence}&limit=5&rate=5/m")
    assert "confirm" in page.ids and (action in ("resume", "reset")) == ("sync-main" in page.html)
    assert unchanged(lease)


@pytest.mark.parametrize("action", ACTIONS)
def test_action_without_csrf_token_or_permission_is_forbidden(lease: Lease, action: str) -> None:
    address, fields = (
        f"{LIST}exports/act/{action}/",
        {"fence": lease.fence, "limit": 5, "rate": "5/m"},
    )
    without_token = client_of("manage_locks", enforce_csrf_checks=True)
    for client in (without_token, client_of("view_locks")):
        assert 403 == client.post(address, fields).status_code
    assert 403 == client_of("view_locks").get(address).status_code
    assert unchanged(lease)


@pytest.mark.parametrize("name", ["unknown", "%7Bother%7D", "a%00b", "x" * 300])
def test_action_page_is_not_found_for_an_unknown_action_or_name(
    manager: Client, lease: Lease, name: str
) -> None:
    for address in (f"{name}/act/pause/", "exports/act/format/"):
        assert 404 == manager.post(LIST + address).status_code
    assert not LogEntry.objects.exists()
    assert unquote(name) not in locks("status", "--format", "json")


@pytest.mark.parametrize("in_session", [False, True], ids=["csrf-cookie", "csrf-session"])
def test_action_form_keeps_its_input_when_the_user_logs_in_again(
    lease: Lease, in_session: bool
) -> None:
    """The session ends while the user fills in the form. `in_session`: use CSRF_USE_SESSIONS."""
    with override_settings(CSRF_USE_SESSIONS=in_session):
        manager = client_of("manage_locks", enforce_csrf_checks=True)
        form = get(manager, "exports/act/resize/").html.partition("sync-confirm")[2]
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
        assert token is not None
        del manager.cookies["sessionid"]
        fields = {"limit": 7, "reason": "a & b", "csrfmiddlewaretoken": token[1]}
        response = manager.post(f"{LIST}exports/act/resize/", fields)
        address = urlsplit(response["Location"])
        assert (302, "/admin/login/") == (response.status_code, address.path)
        login, user = Client(), {"username": "manage_locks", "password": "right"}
        response = login.post(response["Location"], {**user, **parse_qs(address.query)})
        again = get(login, response["Location"])
    assert "confirm" in again.ids and "csrfmiddlewaretoken" not in response["Location"]
    assert 'name="limit" value="7"' in again.html and "Reason, for the log a & b" in again.text
    assert unchanged(lease)


# Release


def test_release_action_ends_only_the_lease_that_the_form_shows(
    manager: Client, lease: Lease
) -> None:
    with Semaphore("exports", 2, label="weekly_report") as other:
        assert "/act/" not in get(client_of("view_locks"), "exports/change/").html
        links = get(manager, "exports/change/").links
        (link,) = (one for one in links if one.endswith(f"/release/?fence={lease.fence}"))
        page = get(manager, link)
        assert "nightly_report" in page.text and "weekly_report" not in page.text
        assert "Now: 2 holders, 0 waiting." in page.text and lease.token not in page.html
        form = page.html.partition('<form method="post" class="sync-confirm"')[2]
        (fence,) = re.findall(r'name="fence" value="(\d+)"', form)
        message = act(manager, "release", fence=fence)
        assert f"Released 1 holder of exports: {lease.token[:8]}." == message
        assert other.owned()
    with pytest.raises(LeaseLost):
        lease.renew()


@pytest.mark.parametrize("action", ["release", "clear"])
def test_release_with_an_old_or_invalid_fence_ends_no_lease(
    manager: Client, lease: Lease, action: str
) -> None:
    lease.release()
    with Semaphore("exports", 2) as newcomer:
        for fence in (lease.fence, "", "x", "-1", "1e9"):
            assert ENDED == act(manager, action, fence=fence), fence
            assert 302 == manager.get(f"{LIST}exports/act/{action}/?fence={fence}").status_code
        assert newcomer.owned()


def test_release_all_includes_holders_that_the_page_does_not_list(manager: Client) -> None:
    crowd = [Semaphore("exports", 500, timeout=1000 + n).acquire() for n in range(205)]
    assert "and 5 more" in get(manager, "exports/change/").text
    highest = max(one.fence for one in crowd if one)
    newcomer = Semaphore("exports", 500, timeout=500).acquire()
    assert "and 5 more" in get(manager, f"exports/act/clear/?fence={highest}").text
    message = act(manager, "clear", fence=highest)
    assert re.fullmatch(r"Released 205 holders of exports: (\w{8}, ){20}…\.", message)
    holders = Semaphore("exports", 500).status().holders
    assert [newcomer.token] == [holder.token for holder in holders]


# Pause, resize, and the log of actions


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        *(("pause", {"seconds": seconds}) for seconds in ("-1", "7", "x")),
        *(
            ("resize", {"limit": limit})
            for limit in ("0", "-1", "1.5", "", "many", "9999999999", "NaN", "١٢x")
        ),
        *(("rate", {"rate": rate}) for rate in ("", "5", "0/m", "5/y", "5/32d")),
        ("pause", {"reason": "x" * 201}),
    ],
)
def test_action_form_explains_invalid_input_and_changes_nothing(
    manager: Client, lease: Lease, action: str, fields: dict[str, str]
) -> None:
    response = manager.post(f"{LIST}exports/act/{action}/", {"reason": "typed before", **fields})
    page = response.content.decode()
    assert 200 == response.status_code
    assert "sync-bad-text" in page and f'value="{fields.get("reason", "typed before")}"' in page
    assert unchanged(lease)


def test_pause_action_on_a_policy_pauses_all_keys_of_the_policy(manager: Client) -> None:
    for key in ("7", "8"):
        assert has_free_permit("exports", 2, key=key)
    both, address = b"The action includes its 2 keys, and new keys.", f"{LIST}exports/act/pause/"
    eventually(lambda: both in manager.get(address).content)
    assert "The action includes" not in get(manager, "exports_407/act/pause/").text
    act(manager, "pause")
    assert Semaphore("exports", 2, key="7").status().paused
    assert "paused" in get(manager, "exports/change/").parts["now"]


def test_each_action_is_logged_with_user_and_reason(manager: Client, lease: Lease) -> None:
    assert "No operator has acted on this name." in get(manager, "exports/history/").text
    reason, messages = " the disk is full <b>\n", []
    for action, fields, limit, is_free in (
        ("pause", {"seconds": 600}, 2, False),
        ("resume", {}, 2, True),
        ("resize", {"limit": 1}, 1, False),
        ("reset", {}, 2, True),
        ("rate", {"rate": "9/h"}, 2, True),
        ("reset", {}, 2, True),
        ("resize", {"limit": 3, "reason": reason}, 3, True),
        ("clear", {"fence": lease.fence}, 3, True),
    ):
        messages.append(act(manager, action, **fields))
        status = Semaphore("exports", 2).status()
        assert (limit, is_free) == (status.limit, has_free_permit("exports", 2)), action
        if action == "pause":
            assert 600 == round((status.paused_until - status.paused_since).total_seconds())
    entries = LogEntry.objects.order_by("pk")
    messages[6] += " the disk is full <b>"
    assert messages == [entry.change_message for entry in entries]
    assert [
        "Paused exports.",
        "Resumed exports.",
        "The limit of exports is now 1.",
        "The callers’ own limit and rate of exports apply again.",
        "The rate of exports is now 9/h.",
        "The callers’ own limit and rate of exports apply again.",
        "The limit of exports is now 3. the disk is full <b>",
        f"Released 1 holder of exports: {lease.token[:8]}.",
    ] == messages
    who = {(e.user.username, e.object_repr, e.get_admin_url()) for e in entries}
    assert {("manage_locks", "exports", f"{LIST}exports/change/")} == who
    recorded = json.loads(locks("log", "exports", "--format", "json"))
    assert {"manage_locks"} == {one["by"] for one in recorded}
    assert ["", "the disk is full <b>"] == [one["reason"] for one in recorded[:2]]
    page = get(manager, "exports/history/").html
    assert "Paused exports." in page and messages[-1] in page
    assert "<bdi>the disk is full &lt;b&gt;</bdi>" in page
    assert f'href="{LIST}exports/change/"' in manager.get("/admin/").content.decode()


def test_admin_log_truncates_names_to_200_characters(manager: Client) -> None:
    name, key = "x" * 150, "y" * 150
    with Semaphore(name, 1, key=key):
        manager.post(f"{LIST}{name}@{key}/act/pause/")
    assert f"{name}@{key}"[:200] == LogEntry.objects.get().object_repr


# Redis is down, or a setting is wrong


@pytest.mark.promise(28)
def test_password_in_a_redis_error_is_masked_on_admin_pages_and_in_the_admin_log(
    manager: Client, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("Error at redis://me:s3cret@h:1/0", maybe_executed=True)

    with monkeypatch.context() as patch:
        patch.setattr("django_redis_sync.console.views.statuses", fail)
        for part in ("change", "live", "data"):
            text = manager.get(f"{LIST}exports/{part}/").content.decode()
            assert "***@h:1/0" in text and "s3cret" not in text
    monkeypatch.setattr("django_redis_sync.operators.actions.Change.pause", fail)
    message = act(manager, "pause")
    assert "The action “Pause exports” failed. Error at redis://***@h:1/0" == message
    assert '<li class="error">' in get(manager, "exports/change/").html
    assert message == LogEntry.objects.get().change_message


@pytest.mark.parametrize("action", ACTIONS)
def test_action_can_be_repeated_after_redis_was_down(
    manager: Client, lease: Lease, action: str
) -> None:
    fields = {
        "fence": lease.fence,
        "limit": 5,
        "rate": "5/m",
        "reason": "a",
        "csrfmiddlewaretoken": "old",
    }
    with unreachable_redis():
        response = manager.post(f"{LIST}exports/act/{action}/", fields)
    page = response.content.decode()
    assert 503 == response.status_code
    assert "Check that the server is running" in page and "hunter2" not in page
    assert "Your action was not carried out." in page
    (link,) = re.findall(r'id="again"[^>]* href="([^"]+)"', page)
    assert "old" not in link
    again = get(manager, link.replace("&amp;", "&"))
    assert "Reason, for the log a" in again.text and "confirm" in again.ids
    assert unchanged(lease)


@pytest.mark.promise(28)
def test_pages_explain_that_redis_is_down(manager: Client, lease: Lease) -> None:
    act(manager, "pause")
    with unreachable_redis():
        found = manager.get(f"{LIST}data/")
        assert (503, {"error", "remedy"}) == (found.status_code, {*found.json()})
        assert b"hunter2" not in found.content
        live = get(manager, "exports/live/", status=503).html
        assert "errornote" in live and "<html" not in live, "more than the part that is refreshed"
        history = get(manager, "exports/history/").html
    assert "Paused exports." in history and "errornote" in history


def cache(location: str, **options: object) -> dict[str, Any]:
    given = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    return {"CACHES": {"default": given}}


@pytest.mark.promise(28)
@pytest.mark.parametrize(
    "changed",
    [
        cache("nonsense://:hunter2@host"),
        cache("redis://:hunter2#@host:x/0"),
        cache(""),
        cache("redis://127.0.0.1", CLIENT_CLASS="no.such.Client"),
        {"CACHES": {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}},
        {"REDIS_SYNC": {"CACHE": "nowhere"}},
        {"REDIS_SYNC": {"TYPO": 1}},
    ],
)
def test_admin_pages_explain_wrong_settings_but_hide_the_redis_password(
    manager: Client, changed: dict[str, object]
) -> None:
    with override_settings(**changed):
        for where in ("", "live/", "exports/change/", "exports/live/", "?o=use"):
            text = get(manager, where, status=503).html
            assert "Correct REDIS_SYNC or CACHES" in text and "hunter2" not in text


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_admin_explains_a_misspelled_setting_when_the_middleware_is_installed(
    manager: Client, settings: Any, asgi: bool
) -> None:
    """In the admin, the pages about locks explain the mistake. Pages outside the admin fail."""
    limits = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, limits]
    settings.REDIS_SYNC = {"TIMOUT": 3}
    client = AsyncClient() if asgi else manager
    client.cookies = manager.cookies
    get = async_to_sync(client.get) if asgi else client.get
    for where in ("/admin/", "/admin/login/"):
        assert get(where).status_code in (200, 302), where
    for where in (LIST, f"{LIST}live/"):
        response = get(where)
        assert 503 == response.status_code and "TIMOUT" in response.content.decode()
    with pytest.raises(ImproperlyConfigured, match="TIMOUT"):
        get("/plain/")
