"""The admin's actions: confirmation, permission, effect, and log."""

import html
import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client, override_settings

from devtools.servers import free_port
from django_redis_sync import Lease, LeaseLost, Semaphore
from django_redis_sync.exceptions import Unavailable
from django_redis_sync.operators import actions
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.promise(26),
]

LIST = "/admin/django_redis_sync/name/"
PAGE = f"{LIST}exports/"
ACTIONS = ("release", "clear", "pause", "resume", "resize", "reset")
ENDED = "The lease had already ended. Nothing was done."


def client_of(*codenames: str, **options: bool) -> Client:
    name = "-".join(codenames) or "no-permission"
    user = User.objects.create_user(name, password="right", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client(**options)
    client.force_login(user)
    return client


@pytest.fixture
def manager() -> Client:
    return client_of("view_locks", "manage_locks")


@pytest.fixture
def lease() -> Iterator[Lease]:
    """The permanent lease of one of two permits."""
    taken = Semaphore("exports", 2, timeout=math.inf, label="nightly_report").acquire()
    assert taken is not None
    yield taken


def unreachable_redis() -> override_settings:
    """Settings whose Redis does not answer."""
    location = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    return override_settings(CACHES={"default": cache})


def act(client: Client, action: str, **fields: object) -> str:
    """Carry out an action. Return the last message shown after it."""
    response = client.post(f"{PAGE}act/{action}/", fields)
    assert (302, f"{PAGE}change/") == (response.status_code, response.get("Location"))
    return [str(message) for message in get_messages(response.wsgi_request)][-1]


def shown(client: Client, where: str) -> str:
    return client.get(PAGE + where).content.decode()


def fields_of(lease: Lease) -> dict[str, Any]:
    return {"fence": lease.fence, "limit": 5}


def unchanged(lease: Lease) -> bool:
    status = status_of("exports")
    logged = LogEntry.objects.exists() or actions.acts("exports")
    return lease.owned() and not status.paused and status.override is None and not logged


# Permission and confirmation


@pytest.mark.parametrize("action", ACTIONS)
def test_action_is_not_carried_out_by_get(manager: Client, lease: Lease, action: str) -> None:
    response = manager.get(f"{PAGE}act/{action}/", fields_of(lease))
    assert 200 == response.status_code
    assert 'id="confirm"' in response.content.decode()
    assert unchanged(lease)


@pytest.mark.parametrize("action", ACTIONS)
def test_action_needs_the_csrf_token_and_the_permission(lease: Lease, action: str) -> None:
    without_token = client_of("manage_locks", enforce_csrf_checks=True)
    for client in (without_token, client_of("view_locks")):
        assert 403 == client.post(f"{PAGE}act/{action}/", fields_of(lease)).status_code
    assert 403 == client_of("view_locks", "add_user").get(f"{PAGE}act/{action}/").status_code
    assert unchanged(lease)


def test_viewer_gets_no_links_to_actions(lease: Lease) -> None:
    assert "/act/" not in shown(client_of("view_locks"), "change/")
    assert "/act/" in shown(client_of("manage_locks"), "change/")


@pytest.mark.parametrize("name", ["unknown", "%7Bother%7D", "a%00b", "x" * 300])
def test_action_on_an_unknown_name_is_not_found(manager: Client, name: str) -> None:
    assert 404 == manager.post(f"{LIST}{name}/act/pause/").status_code
    assert not LogEntry.objects.exists()
    assert unquote(name) not in dict(names_in_use())


def test_unknown_action_is_not_found(manager: Client, lease: Lease) -> None:
    assert 404 == manager.post(f"{PAGE}act/format/").status_code


@pytest.mark.parametrize("in_session", [False, True], ids=["csrf-cookie", "csrf-session"])
def test_confirm_page_returns_with_its_input_after_a_login(lease: Lease, in_session: bool) -> None:
    """The session ends before the form is sent."""
    with override_settings(CSRF_USE_SESSIONS=in_session):
        manager = client_of("manage_locks", enforce_csrf_checks=True)
        page = shown(manager, "act/resize/")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token is not None
        del manager.cookies["sessionid"]
        fields = {"limit": 7, "reason": "a & b", "csrfmiddlewaretoken": token[1]}
        response = manager.post(f"{PAGE}act/resize/", fields)

        address = urlsplit(response["Location"])
        assert (302, "/admin/login/") == (response.status_code, address.path)
        login = Client()
        response = login.post(
            f"{address.path}?{address.query}",
            {"username": "manage_locks", "password": "right", **parse_qs(address.query)},
        )
        again = login.get(response["Location"]).content.decode()
    assert 'name="limit" value="7"' in again and 'name="reason" value="a &amp; b"' in again
    assert 'id="confirm"' in again
    assert unchanged(lease)


# Release


def test_confirm_page_shows_the_holder_to_be_released_and_no_other(
    manager: Client, lease: Lease
) -> None:
    with Semaphore("exports", 2, label="weekly_report"):
        (link, _) = re.findall(r'id="release-\d+" href="([^"]+)"', shown(manager, "change/"))
        page = manager.get(html.unescape(link)).content.decode()
    assert "nightly_report" in page and "weekly_report" not in page
    assert lease.token[8:] not in page


def test_released_holder_loses_its_lease(manager: Client, lease: Lease) -> None:
    with Semaphore("exports", 2) as other:
        message = act(manager, "release", fence=lease.fence)
        assert f"Released 1 holder of exports: {lease.token[:8]}." == message
        assert other.owned()
    with pytest.raises(LeaseLost):
        lease.renew()


@pytest.mark.parametrize("action", ["release", "clear"])
def test_later_holder_keeps_its_lease(manager: Client, lease: Lease, action: str) -> None:
    lease.release()
    with Semaphore("exports", 2) as newcomer:
        assert ENDED == act(manager, action, fence=lease.fence)
        assert manager.get(f"{PAGE}act/{action}/?fence={lease.fence}").status_code == 302
        assert newcomer.owned()


@pytest.mark.parametrize("fence", ["", "x", "-1", "0", "1e9"])
def test_invalid_fence_releases_no_holder(manager: Client, lease: Lease, fence: str) -> None:
    for action in ("release", "clear"):
        assert ENDED == act(manager, action, fence=fence)
    assert lease.owned()


def test_release_all_includes_holders_beyond_the_rows_shown(manager: Client) -> None:
    crowd = [Semaphore("exports", 500, timeout=60 + n).acquire() for n in range(205)]
    page = shown(manager, "change/")
    assert "and 5 more" in page
    highest = max(one.fence for one in crowd if one)
    newcomer = Semaphore("exports", 500, timeout=5).acquire()
    assert newcomer is not None
    assert "and 5 more" in shown(manager, f"act/clear/?fence={highest}")
    assert act(manager, "clear", fence=highest).startswith("Released 205 holders of exports: ")
    assert [newcomer.token] == [holder.token for holder in status_of("exports").holders]


# Pause and resize


def test_pause_resume_resize_and_reset_take_effect(manager: Client, lease: Lease) -> None:
    assert "Paused exports." == act(manager, "pause")
    assert Semaphore("exports", 2).acquire(blocking=False) is None
    assert "Resumed exports." == act(manager, "resume")
    assert "The limit of exports is now 1." == act(manager, "resize", limit=1)
    assert Semaphore("exports", 2).acquire(blocking=False) is None
    assert 1 == status_of("exports").limit
    assert "The callers’ own limit of exports applies again." == act(manager, "reset")
    assert 2 == status_of("exports").limit


def test_name_page_shows_when_a_pause_ends(manager: Client, lease: Lease) -> None:
    assert '<option value="10">10 minutes</option>' in shown(manager, "act/pause/")
    act(manager, "pause", minutes=10)
    status = status_of("exports")
    assert status.paused_until is not None and status.paused_since is not None
    assert 595 < (status.paused_until - status.at).total_seconds() <= 600
    page = shown(manager, "change/")
    assert re.search(r"No new permit is granted until [-\d :]*\d\d:\d\d:\d\d\.", page)


@pytest.mark.parametrize("minutes", ["-1", "7", "x"])
def test_invalid_duration_does_not_pause(manager: Client, lease: Lease, minutes: str) -> None:
    assert 200 == manager.post(f"{PAGE}act/pause/", {"minutes": minutes}).status_code
    assert unchanged(lease)


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "", "many", "9999999999", "NaN", "١٢x"])
def test_invalid_limit_is_explained_and_the_reason_is_retained(
    manager: Client, lease: Lease, limit: str
) -> None:
    response = manager.post(f"{PAGE}act/resize/", {"limit": limit, "reason": "typed before"})
    page = response.content.decode()
    assert 200 == response.status_code
    assert "sync-bad-text" in page and 'value="typed before"' in page
    assert unchanged(lease)


def test_policy_is_paused_with_all_its_keys(manager: Client) -> None:
    for key in ("7", "8"):
        with Semaphore("exports", 2, key=key):
            pass
    eventually(lambda: listed("exports@7", "exports@8"))
    assert "The action includes its 2 keys" in shown(manager, "act/pause/")
    assert "The action includes" not in manager.get(f"{LIST}exports@7/act/pause/").content.decode()
    act(manager, "pause")
    assert status_of("exports", "7").paused
    assert "paused" in shown(manager, "change/")


# The log


def test_each_action_is_logged_with_user_and_reason(manager: Client, lease: Lease) -> None:
    for action in ("pause", "resume", "reset"):
        act(manager, action)
    act(manager, "resize", limit=3, reason=" the disk is full <b>\n")
    message = act(manager, "clear", fence=lease.fence)

    entries = LogEntry.objects.order_by("pk")
    assert [
        "Paused exports.",
        "Resumed exports.",
        "The callers’ own limit of exports applies again.",
        "The limit of exports is now 3. the disk is full <b>",
        message,
    ] == [entry.change_message for entry in entries]
    assert {"view_locks-manage_locks"} == {entry.user.username for entry in entries}
    assert {"exports"} == {entry.object_repr for entry in entries}
    assert {f"{PAGE}change/"} == {entry.get_admin_url() for entry in entries}
    page = shown(manager, "history/")
    assert "Paused exports." in page and message in page
    assert f'href="{PAGE}change/"' in manager.get("/admin/").content.decode()
    actions.resume("exports")
    (recorded,) = [one for one in actions.acts("exports") if one.what == "resize"]
    assert ("view_locks-manage_locks", "the disk is full <b>") == (recorded.by, recorded.reason)
    assert "the disk is full &lt;b&gt;" in page


def test_long_name_is_logged_up_to_the_column_length(manager: Client) -> None:
    name, key = "x" * 150, "y" * 150
    with Semaphore(name, 1, key=key):
        manager.post(f"{LIST}{name}@{key}/act/pause/")
    assert f"{name}@{key}"[:200] == LogEntry.objects.get().object_repr


def test_history_of_a_name_without_actions_is_empty(manager: Client, lease: Lease) -> None:
    page = shown(manager, "history/")
    assert "No operator has acted on this name." in page
    assert f'href="{PAGE}change/"' in page


# Redis is down


def test_failed_action_is_reported_and_logged(
    manager: Client, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("no answer in time", maybe_executed=True)

    monkeypatch.setattr(actions, "pause", fail)
    message = act(manager, "pause")
    assert "Pause exports: this failed. no answer in time" == message
    assert '<li class="error">' in shown(manager, "change/")
    assert message == LogEntry.objects.get().change_message


@pytest.mark.parametrize("action", ACTIONS)
def test_action_can_be_repeated_after_redis_was_down(
    manager: Client, lease: Lease, action: str
) -> None:
    with unreachable_redis():
        fields = {**fields_of(lease), "reason": "a", "csrfmiddlewaretoken": "old"}
        response = manager.post(f"{PAGE}act/{action}/", fields)
    page = response.content.decode()
    assert 503 == response.status_code
    assert "Check that the server is running" in page and "hunter2" not in page
    assert "Your action was not carried out." in page
    (link,) = re.findall(r'id="again"[^>]* href="([^"]+)"', page)
    assert "old" not in link
    again = manager.get(html.unescape(link)).content.decode()
    assert 'name="reason" value="a"' in again and 'id="confirm"' in again
    assert unchanged(lease)


def test_history_is_shown_while_redis_is_down(manager: Client, lease: Lease) -> None:
    act(manager, "pause")
    with unreachable_redis():
        response = manager.get(f"{PAGE}history/")
    assert 200 == response.status_code
    assert "Paused exports." in response.content.decode()
