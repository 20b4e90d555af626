"""The admin's actions: by POST, with CSRF, confirmed, logged, and only on whom was shown."""

import html
import math
import re
import time
from collections.abc import Iterator

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client

from django_redis_sync import Lease, LeaseLost, Semaphore
from django_redis_sync.console import pages
from django_redis_sync.console.acting import VERBS
from django_redis_sync.engine.names import NOTED_AFTER
from django_redis_sync.operators import actions, audit
from django_redis_sync.operators.names import family, names_in_use
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.test_admin_pages import out_of_reach

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("clean_redis")]

PAGE = "/admin/django_redis_sync/name/exports/"


def client_of(*codenames: str, **options: bool) -> Client:
    user = User.objects.create_user("-".join(codenames), is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client(**options)
    client.force_login(user)
    return client


@pytest.fixture
def manager() -> Client:
    return client_of("view_locks", "manage_locks")


@pytest.fixture
def lease() -> Iterator[Lease]:
    """Somebody holds one of two permits, for ever."""
    taken = Semaphore("exports", 2, timeout=math.inf, label="nightly_report").acquire()
    assert taken is not None
    yield taken


def act(client: Client, verb: str, **fields: object) -> str:
    """Confirm an action; what people are told of it, after what they were told before."""
    response = client.post(f"{PAGE}act/{verb}/", {"confirm": "yes", **fields})
    assert response.status_code == 302
    assert response["Location"] == f"{PAGE}change/"
    return [str(message) for message in get_messages(response.wsgi_request)][-1]


def references(client: Client) -> list[str]:
    """What the buttons of the page say for its holders."""
    shown = client.get(f"{PAGE}change/").content.decode()
    return [html.unescape(value) for value in re.findall(r'name="holder" value="([^"]+)"', shown)]


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_by_get_is_refused(manager: Client, lease: Lease, verb: str) -> None:
    response = manager.get(f"{PAGE}act/{verb}/")

    assert response.status_code == 405
    assert response["Allow"] == "POST"
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_without_csrf_is_refused(lease: Lease, verb: str) -> None:
    client = client_of("manage_locks", enforce_csrf_checks=True)
    (reference,) = references(client)
    fields = {"confirm": "yes", "limit": 5, "holder": reference, "shown": reference}

    assert client.post(f"{PAGE}act/{verb}/", fields).status_code == 403
    assert not LogEntry.objects.exists()
    assert lease.owned() and not status_of("exports").paused


@pytest.mark.parametrize("verb", VERBS)
def test_who_may_only_view_may_not_act(lease: Lease, verb: str) -> None:
    viewer = client_of("view_locks")
    status = status_of("exports")
    reference = pages.reference(status, lease.token)
    fields = {"confirm": "yes", "limit": 5, "holder": reference, "shown": reference}

    assert viewer.post(f"{PAGE}act/{verb}/", fields).status_code == 403
    assert not LogEntry.objects.exists()
    assert lease.owned() and not status_of("exports").paused
    assert references(viewer) == []


@pytest.mark.parametrize("name", ["unknown", "%7Bother%7D", "a%00b", "x" * 300])
def test_an_action_on_a_name_that_is_not_ours_is_refused(manager: Client, name: str) -> None:
    response = manager.post(f"/admin/django_redis_sync/name/{name}/act/pause/", {"confirm": "yes"})

    assert response.status_code == 404
    assert not LogEntry.objects.exists()
    assert names_in_use() == []


def test_an_unknown_action_is_not_found(manager: Client, lease: Lease) -> None:
    assert manager.post(f"{PAGE}act/format/").status_code == 404


def test_the_forms_hold_no_token(manager: Client, lease: Lease) -> None:
    (reference,) = references(manager)
    status = status_of("exports")

    assert lease.token[8:] not in reference
    assert reference == pages.reference(status, lease.token)
    assert reference != pages.reference(status, lease.token[::-1])


def test_nothing_happens_before_it_is_confirmed(manager: Client, lease: Lease) -> None:
    (reference,) = references(manager)
    for verb in VERBS:
        fields = {"limit": 5, "holder": reference, "shown": reference}
        response = manager.post(f"{PAGE}act/{verb}/", fields)
        assert response.status_code == 200
        assert 'name="confirm"' in response.content.decode()

    status = status_of("exports")
    assert lease.owned() and not status.paused and status.override is None
    assert not LogEntry.objects.exists()


def test_a_holder_is_released_and_learns_of_it(manager: Client, lease: Lease) -> None:
    other = Semaphore("exports", 2, label="weekly_report").acquire()
    assert other is not None
    reference = pages.reference(status_of("exports"), lease.token)
    response = manager.post(f"{PAGE}act/release/", {"holder": reference})
    shown = response.content.decode()
    assert "nightly_report" in shown and "weekly_report" not in shown

    told = act(manager, "release", holder=reference)

    assert told == f"Released 1 holder of exports: {lease.token[:8]}."
    assert other.owned()
    with pytest.raises(LeaseLost):
        lease.renew()
    other.release()


def test_all_that_were_chosen_are_released(manager: Client, lease: Lease) -> None:
    others = [Semaphore("exports", 4).acquire() for _ in range(2)]
    status = status_of("exports")
    chosen = [pages.reference(status, one.token) for one in (lease, others[0]) if one]

    assert act(manager, "release", holder=chosen).startswith("Released 2 holders")
    assert [others[1].token] == [holder.token for holder in status_of("exports").holders]


def test_a_newcomer_is_left_alone(manager: Client, lease: Lease) -> None:
    (reference,) = references(manager)
    lease.release()
    newcomer = Semaphore("exports", 2).acquire()
    assert newcomer is not None

    assert act(manager, "release", holder=reference) == (
        "It had ended by itself: nothing was done."
    )
    assert act(manager, "clear", shown=[reference]) == "It had ended by itself: nothing was done."
    assert 302 == manager.post(f"{PAGE}act/release/", {"holder": reference}).status_code
    assert newcomer.owned()
    newcomer.release()


def test_a_reference_of_another_name_releases_nobody(manager: Client, lease: Lease) -> None:
    """Nor does a token by itself: what a form says stands for a holder of its name."""
    other = status_of("other")
    for said in (pages.reference(other, lease.token), lease.token, ""):
        for verb, field in (("release", "holder"), ("clear", "shown")):
            told = act(manager, verb, **{field: said})
            assert told == "It had ended by itself: nothing was done."
    assert lease.owned()


def test_all_that_were_shown_are_released_and_no_other(manager: Client, lease: Lease) -> None:
    shown = references(manager)
    newcomer = Semaphore("exports", 2).acquire()
    assert newcomer is not None

    assert act(manager, "clear", shown=shown).startswith("Released 1 holder")
    assert newcomer.owned() and not lease.owned()
    newcomer.release()


def test_of_many_holders_those_beyond_the_page_are_found(manager: Client) -> None:
    crowd = [Semaphore("exports", 500, timeout=60 + n).acquire() for n in range(205)]
    last = crowd[-1]
    assert last is not None
    assert "and 5 more" in manager.get(f"{PAGE}change/").content.decode()

    reference = pages.reference(status_of("exports"), last.token)
    assert act(manager, "release", holder=reference).startswith("Released 1 holder")
    assert not last.owned()


def test_pause_resume_resize_and_reset(manager: Client, lease: Lease) -> None:
    assert act(manager, "pause") == "Paused exports."
    assert Semaphore("exports", 2).acquire(blocking=False) is None
    assert act(manager, "resume") == "Resumed exports."
    assert act(manager, "resize", limit=1) == "The limit of exports is now 1."
    assert Semaphore("exports", 2).acquire(blocking=False) is None
    assert status_of("exports").limit == 1
    assert act(manager, "reset") == "The callers’ own limit of exports applies again."
    assert status_of("exports").limit == 2


def test_a_policy_is_paused_with_all_its_keys(manager: Client) -> None:
    for key in ("7", "8"):
        with Semaphore("exports", 2, key=key):
            pass
    end = time.monotonic() + NOTED_AFTER + 5
    while len(family("exports")) < 3:
        assert time.monotonic() < end
        time.sleep(0.02)

    asked = manager.post(f"{PAGE}act/pause/").content.decode()
    assert "its 2 keys too" in asked
    act(manager, "pause")
    assert status_of("exports", "7").paused
    assert "paused" in manager.get(f"{PAGE}change/").content.decode()


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "", "many", "9999999999", "NaN", "١٢x"])
def test_an_impossible_limit_is_refused_in_words(manager: Client, lease: Lease, limit: str) -> None:
    assert act(manager, "resize", limit=limit).startswith("A limit is a whole number")
    assert '<li class="error">' in manager.get(f"{PAGE}change/").content.decode()
    assert status_of("exports").override is None


def test_every_action_leaves_an_entry_in_the_log(manager: Client, lease: Lease) -> None:
    (reference,) = references(manager)
    for verb in ("pause", "resume", "reset"):
        act(manager, verb)
    act(manager, "resize", limit=3)
    told = act(manager, "clear", shown=reference)

    entries = LogEntry.objects.order_by("pk")
    assert len(entries) == 5
    assert {entry.user.username for entry in entries} == {"view_locks-manage_locks"}
    assert {entry.object_repr for entry in entries} == {"exports"}
    assert entries.last().change_message == told
    assert all(entry.get_admin_url() == f"{PAGE}change/" for entry in entries)
    shown = manager.get(f"{PAGE}history/").content.decode()
    assert "Paused exports." in shown and told in shown
    assert f'href="{PAGE}change/"' in manager.get("/admin/").content.decode()


def test_a_long_name_is_logged_too(manager: Client) -> None:
    """As much of it as a column of Django's log takes."""
    name, key = "x" * 150, "y" * 150
    with Semaphore(name, 1, key=key):
        manager.post(f"/admin/django_redis_sync/name/{name}@{key}/act/pause/", {"confirm": "yes"})
    assert f"{name}@{key}"[:200] == LogEntry.objects.get().object_repr


def test_a_name_that_nobody_touched_has_an_empty_history(manager: Client, lease: Lease) -> None:
    shown = manager.get(f"{PAGE}history/").content.decode()
    assert "Nobody did anything to it so far." in shown
    assert f'href="{PAGE}change/"' in shown


def test_an_action_that_fails_is_told_and_logged(
    manager: Client, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_redis_sync.exceptions import Unavailable
    from django_redis_sync.operators import actions

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("no answer in time", maybe_executed=True)

    monkeypatch.setattr(actions, "pause", fail)

    told = act(manager, "pause")

    assert "no answer in time" in told
    assert '<li class="error">' in manager.get(f"{PAGE}change/").content.decode()
    assert LogEntry.objects.get().change_message == told


def test_redis_down_at_an_action_is_a_page(manager: Client) -> None:
    with out_of_reach():
        response = manager.post(f"{PAGE}act/pause/", {"confirm": "yes"})
    assert response.status_code == 503
    assert "Check that the server runs" in response.content.decode()


def test_a_limit_that_was_typed_is_kept_when_redis_goes_away(manager: Client) -> None:
    with out_of_reach():
        response = manager.post(f"{PAGE}act/resize/", {"limit": "17"})
    shown = response.content.decode()
    assert 503 == response.status_code
    assert "Nothing was done of what you asked for: Set the limit of exports to 17." in shown
    assert 'value="Try again: Set the limit of exports to 17"' in shown
    assert '<input type="hidden" name="limit" value="17">' in shown


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("pause", "Pause exports"),
        ("resume", "Resume exports"),
        ("reset", "Reset the limit of exports"),
        ("release", "Release holders of exports"),
        ("clear", "Release holders of exports"),
    ],
)
def test_what_was_asked_for_is_said_when_redis_goes_away(
    manager: Client, verb: str, said: str
) -> None:
    with out_of_reach():
        shown = manager.post(f"{PAGE}act/{verb}/").content.decode()
    assert f"Nothing was done of what you asked for: {said}." in shown
    assert f'value="Try again: {said}"' in shown


def test_all_that_were_chosen_are_kept_when_redis_goes_away(manager: Client) -> None:
    with out_of_reach():
        fields = {"holder": ["one", "two"], "csrfmiddlewaretoken": "old"}
        response = manager.post(f"{PAGE}act/release/", fields)
    shown = response.content.decode()
    assert 'value="old"' not in shown
    kept = re.findall(r'<input type="hidden" name="holder" value="(\w+)">', shown)
    assert (503, ["one", "two"]) == (response.status_code, kept)


@pytest.mark.usefixtures("fresh_keeper")
def test_the_button_says_what_will_happen(manager: Client, lease: Lease) -> None:
    def button(verb: str, **fields: object) -> str:
        shown = manager.post(f"{PAGE}act/{verb}/", fields).content.decode()
        found = re.search(r'<input type="submit" id="confirm"[^>]* value="([^"]+)"', shown)
        assert found is not None
        return html.unescape(found[1])

    assert "Pause exports: 1 holds, 0 wait" == button("pause")
    assert "Set the limit of exports to 5: 1 holds, 0 wait" == button("resize", limit=5)
    (reference,) = references(manager)
    assert "Release 1 holder of exports" == button("release", holder=reference)
    with Semaphore("exports", 2, key="7"):
        eventually(lambda: listed("exports@7"))
        assert "Pause exports: 1 key" == button("pause")
        key = manager.post(f"{PAGE[:-1]}@7/act/pause/").content.decode()
    assert "Pause exports@7: 1 holds, 0 wait" in key and "of its 1 key too" not in key


def test_the_reason_and_whoever_acts_are_on_record(manager: Client, lease: Lease) -> None:
    act(manager, "pause", reason=" the disk is full <b>\n")
    actions.resume("exports", by="cron", reason="it is not")
    by_page, by_code = reversed(audit.acts("exports"))
    assert ("pause", "view_locks-manage_locks", "the disk is full <b>") == (
        by_page.what,
        by_page.by,
        by_page.reason,
    )
    assert ("resume", "cron", "it is not") == (by_code.what, by_code.by, by_code.reason)
    shown = manager.get(f"{PAGE}history/").content.decode()
    assert "the disk is full &lt;b&gt;" in shown and "cron" in shown and "it is not" in shown
    assert LogEntry.objects.get().change_message == "Paused exports. the disk is full <b>"


def test_the_history_is_shown_while_redis_is_down(manager: Client, lease: Lease) -> None:
    act(manager, "pause")
    with out_of_reach():
        response = manager.get(f"{PAGE}history/")
    assert 200 == response.status_code
    assert "Paused exports." in response.content.decode()
