"""The admin's pages: what they show, and that they stay up."""

import math
import re
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path, resolve, reverse
from django.utils import translation

from devtools.servers import free_port
from django_redis_sync import Lock, ReadWriteLock, Semaphore
from django_redis_sync.admin import NameAdmin
from django_redis_sync.console import charts, pages
from django_redis_sync.limits import identity
from django_redis_sync.models import Name
from django_redis_sync.operators import actions
from django_redis_sync.operators.history import Counters
from django_redis_sync.operators.status import _record
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import eventually
from tests.support.keepers import listed

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("clean_redis")]

LIST = "/admin/django_redis_sync/name/"
EVIL = "<img src=x onerror=alert(1)>"

own_site = admin.AdminSite(name="operations")
own_site.register(Name, NameAdmin)
urlpatterns = [
    path("admin/", admin.site.urls),
    path("ops/", own_site.urls),
    path("plain/", lambda request: HttpResponse("plain")),
]


def staff(*codenames: str) -> Client:
    user = User.objects.create_user("-".join(codenames) or "nobody", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def viewer() -> Client:
    return staff("view_locks")


@pytest.fixture
def held() -> Iterator[Callable[..., None]]:
    """Takes a permit, until the test is over."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Semaphore(*args, **options))


def shown_list(client: Client, *names: str, query: str = "") -> str:
    """The list, once the registry, which is written in the background, knows these names. A process
    writes each once a minute, so that every test here lists names of its own."""
    eventually(lambda: listed(*names))
    response = client.get(LIST + query)
    assert response.status_code == 200
    return response.content.decode()


def test_nobody_may_add_change_or_delete_what_is_no_row(rf: RequestFactory) -> None:
    def allowed(user: User) -> list[bool]:
        request, entry = rf.get("/"), NameAdmin(Name, admin.site)
        request.user = user
        words = ("module", "view", "add", "change", "delete")
        return [getattr(entry, f"has_{word}_permission")(request) for word in words]

    assert [True, True, False, False, False] == allowed(User(is_superuser=True, is_active=True))
    assert [False] * 5 == allowed(User.objects.create_user("nobody", is_staff=True))


def test_the_index_shows_the_entry_to_those_who_may_see(viewer: Client) -> None:
    assert "Locks and semaphores" in viewer.get("/admin/").content.decode()
    assert "Locks and semaphores" not in staff().get("/admin/").content.decode()


def test_a_history_page_says_what_a_subclass_adds_to_it(viewer: Client, rf: RequestFactory) -> None:
    request = rf.get("/")
    request.user = User(is_superuser=True, is_active=True)
    shown: Any = NameAdmin(Name, admin.site).history_view(request, "exports", {"motto": "x"})
    assert ("x", []) == (shown.context_data["motto"], [*shown.context_data["acts"]])


def test_each_address_says_whose_page_it_is() -> None:
    for where in ("", "live/", "data/", "exports/change/", "exports/live/", "exports/act/pause/"):
        owner: Any = getattr(resolve(LIST + where).func, "model_admin", None)
        assert isinstance(owner, NameAdmin), where


def test_who_may_manage_may_see() -> None:
    assert staff("manage_locks").get(LIST).status_code == 200


@pytest.mark.parametrize("where", ["", "live/", "exports/change/", "exports/live/"])
def test_pages_are_for_those_who_may_see(where: str) -> None:
    assert staff().get(LIST + where).status_code == 403
    assert Client().get(LIST + where).status_code == 302


def test_nothing_can_be_added_changed_or_deleted_as_a_row(viewer: Client) -> None:
    assert viewer.get(LIST + "add/").status_code == 403
    assert viewer.get(LIST + "exports/delete/").status_code == 403
    assert viewer.post(LIST + "exports/change/").status_code == 405


def test_the_list_tells_use_and_age(viewer: Client, held: Callable[..., None]) -> None:
    held("first-exports", 4)
    held("first-exports", 4)

    shown = shown_list(viewer, "first-exports")

    assert "first-exports" in shown
    assert "2 / 4" in shown
    assert '<rect class="sync-fill" width="50" height="8"/>' in shown


def test_a_name_that_cannot_be_read_does_not_hide_the_others(
    raw: redis.Redis, viewer: Client, held: Callable[..., None]
) -> None:
    held("good", 3)
    with Lock("spoiled"):
        eventually(lambda: listed("spoiled"))
    raw.set(keys_of(settings.PREFIX, "spoiled").leases, "precious")
    for order in ("", "?o=-use"):
        text = shown_list(viewer, "good", query=order)
        assert "1 name can't be read, and is not shown:" in text
        assert "another program&#x27;s value" in text
        assert 'id="row-good"' in text and 'id="row-spoiled"' not in text


def test_the_list_is_searched_sorted_and_paged(
    viewer: Client, held: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"list-alpha": 4, "list-beta": 1, "list-gamma": 2}
    for name, limit in limits.items():
        held(name, limit)

    shown = shown_list(viewer, *limits, query="?o=use")
    assert (
        shown.index("list-beta</bdi>")
        < shown.index("list-gamma</bdi>")
        < shown.index("list-alpha</bdi>")
    )
    assert 'aria-sort="descending"' in shown
    shown = shown_list(viewer, query="?o=-name")
    assert shown.index("list-gamma</bdi>") < shown.index("list-alpha</bdi>")
    for order in ("waiting", "-waiting", "oldest", "-oldest", "nonsense"):
        assert "list-alpha" in shown_list(viewer, query=f"?o={order}")

    shown = shown_list(viewer, query="?q=-BET")
    assert "list-beta</bdi>" in shown and "list-alpha</bdi>" not in shown
    assert 'name="q" value="-BET"' in shown  # to be searched again
    assert "No name holds" in shown_list(viewer, query=f"?q={EVIL}")

    monkeypatch.setattr(pages, "PER_PAGE", 2)
    assert "Page 1 of 2" in shown_list(viewer, query="?q=list-")
    assert "list-gamma</bdi>" in shown_list(viewer, query="?q=list-&p=2")


def test_children_stand_under_their_policy(viewer: Client, held: Callable[..., None]) -> None:
    for key in range(7):
        held("per-user", 3, key=str(key))

    shown = shown_list(viewer, *(f"per-user@{key}" for key in range(7)))

    assert "7 in 7 keys" in shown
    assert "2 more keys" in shown
    policy = viewer.get(LIST + "per-user/change/").content.decode()
    assert all(f"per-user@{key}" in policy for key in range(7))
    assert viewer.get(LIST + "per-user@3/change/").status_code == 200


def test_a_name_of_the_settings_is_known_before_it_is_used(viewer: Client) -> None:
    with override_settings(REDIS_SYNC={"SEMAPHORES": {"unused": {"limit": 2}}}):
        assert "unused" in viewer.get(LIST).content.decode()
        assert viewer.get(LIST + "unused/change/").status_code == 200


def test_the_page_of_a_name_shows_holders_whole_but_for_their_tokens(viewer: Client) -> None:
    with Semaphore("exports", 3, label="nightly_report", timeout=math.inf) as lease:
        shown = viewer.get(LIST + "exports/change/").content.decode()

    assert "nightly_report" in shown
    assert str(lease.fence) in shown
    assert "never ends" in shown
    assert lease.token[:8] in shown
    assert lease.token not in shown


def test_each_cell_stands_below_the_header_that_it_names(viewer: Client) -> None:
    """A phone shows a cell with its label, and a desktop below its header."""
    with ReadWriteLock("rw").read, Semaphore("exports", 1, key="7"):
        eventually(lambda: listed("rw", "exports@7"))
        shown = [viewer.get(LIST + where).content.decode() for where in ("", "rw/change/")]
    seen = 0
    for table in re.findall(r"<table.*?</table>", "".join(shown), re.DOTALL):
        heads = [
            " ".join(re.sub(r"<[^>]*>", " ", head).split())
            for head in re.findall(r'<th[^>]*role="columnheader".*?</th>', table, re.DOTALL)
        ]
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL):
            if labels := re.findall(r'data-label="([^"]*)"', row):
                assert labels == [head for head in heads if head in labels]
                seen += 1
    assert seen >= 3


def test_of_the_keys_searched_for_a_page_full_is_shown(viewer: Client) -> None:
    with ExitStack() as stack:
        for n in range(12):
            stack.enter_context(Semaphore(f"p{n}", 1, key="user-9"))
        eventually(lambda: listed(*(f"p{n}@user-9" for n in range(12))))
        found = viewer.get(LIST, {"q": "user-9"}).content.decode()
    assert all(f"p{n}@user-9" in found for n in range(12))


def test_who_was_turned_away_is_counted_whether_it_waited_or_not(
    viewer: Client, held: Callable[..., None]
) -> None:
    held("too-small", 1)
    assert Semaphore("too-small", 1).acquire(blocking=False) is None
    for _ in range(2):
        assert Semaphore("too-small", 1).acquire(blocking_timeout=0.01) is None

    shown = " ".join(shown_list(viewer, "too-small").split())
    assert "Rejected or timed out, last hour" in shown
    _, _, cell = shown.rpartition('data-label="Rejected or timed out, last hour"')
    assert cell.startswith(' class="sync-number sync-bad-text">3</td>')
    shown = viewer.get(LIST + "too-small/change/").content.decode()
    assert "<dt>Rejected</dt><dd>1</dd>" in shown and "<dt>Timed out</dt><dd>2</dd>" in shown


def test_a_holder_by_hand_over_is_explained(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _record
    monkeypatch.setattr(
        "django_redis_sync.operators.status._record", lambda text: ("g", *read(text)[1:])
    )
    with Lock("handed"):
        shown = viewer.get(LIST + "handed/change/").content.decode()
    assert "just handed over</span>" in shown
    assert "its process is dead, the permit goes to the next by itself within 5 s" in shown


def test_a_writer_and_an_operators_marks_are_shown(viewer: Client) -> None:
    actions.resize("exports", None, 9)
    actions.pause("exports")
    shown = viewer.get(LIST + "exports/change/").content.decode()
    assert "An operator set the limit to 9" in shown
    assert "nobody new gets in" in shown

    with ReadWriteLock("table").write:
        shown = viewer.get(LIST + "table/change/").content.decode()
    assert "by a writer" in shown


def test_html_in_names_and_labels_is_text(viewer: Client, held: Callable[..., None]) -> None:
    held(EVIL, 2, label=EVIL)

    for shown in (
        shown_list(viewer, EVIL),
        shown_list(viewer, query=f"?q={EVIL}"),
        viewer.get(reverse("admin:django_redis_sync_name_change", args=[quoted(EVIL)])),
    ):
        text = shown if isinstance(shown, str) else shown.content.decode()
        assert EVIL not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in text


def quoted(name: str, key: str | None = None) -> str:
    from django.contrib.admin.utils import quote

    return quote(Name.of(name, key).id)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a/b", None),
        ("a@b", None),
        ("a", "b"),
        ("{x}%20", "k@1"),
        (".", None),
        ("..", None),
        ("%2E", None),
        ("история ?q=1#top", None),
        ("live", None),
        ("a_2Fb", None),
        (EVIL, "?"),
    ],
)
def test_every_name_has_a_page_of_its_own(viewer: Client, name: str, key: str | None) -> None:
    with Semaphore(name, 2, key=key):
        url, live, data = (
            reverse(f"admin:django_redis_sync_name_{page}", args=[quoted(name, key)])
            for page in ("change", "live_name", "data_name")
        )
        response = viewer.get(url)
        assert 200 == viewer.get(live).status_code
        (told,) = viewer.get(data).json()["names"]

    assert not {".", ".."} & {*url.split("/")}  # a browser would go up there
    assert (name, key) == (told["name"], told["key"])
    assert response.status_code == 200
    assert response.context["status"].name == name
    assert response.context["status"].key == key


class Whole(HTMLParser):
    """A page: the ids on it, those that its attributes name, and where its links lead."""

    NAMING = ("for", "form", "aria-labelledby", "aria-describedby", "aria-controls")

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.ids, self.named, self.links = list[str](), set[str](), set[str]()
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.named.update(one for name in self.NAMING for one in given.get(name, "").split())
        self.links.update([given["href"]] if tag == "a" else [])


SITE = """{% extends "admin/base.html" %}
{% block extrastyle %}<link id="host-style">{% endblock %}
{% block extrahead %}<meta id="host-head">{% endblock %}
{% block bodyclass %}host-class{% endblock %}
{% block footer %}<p id="host-footer"></p>{% endblock %}"""


@pytest.fixture
def of_the_host(settings: Any) -> None:
    """A project's own frame around the pages of the admin."""
    (engine,) = settings.TEMPLATES
    loaders = [
        ("django.template.loaders.locmem.Loader", {"admin/base_site.html": SITE}),
        "django.template.loaders.app_directories.Loader",
    ]
    cached = [("django.template.loaders.cached.Loader", loaders)]
    options = {**engine.get("OPTIONS", {}), "loaders": cached}
    settings.TEMPLATES = [{**engine, "APP_DIRS": False, "OPTIONS": options}]


@pytest.mark.usefixtures("of_the_host")
def test_each_page_stands_in_the_hosts_frame_and_leads_where_there_is_something(
    held: Callable[..., None],
) -> None:
    name, key, manager = "whole_2F/1?#", "k_40/2", staff("view_locks", "manage_locks")
    held(name, 2)
    held(name, 2, key=key)
    eventually(lambda: listed(Name.of(name, key).id))
    plain, child = (f"{LIST}{quoted(name, each)}/" for each in (None, key))
    manager.post(f"{child}act/pause/", {"confirm": "yes", "reason": "a"})
    shown = [LIST, *(one + end for one in (plain, child) for end in ("change/", "history/"))]
    answers = {url: manager.get(url) for url in shown}
    answers[f"{child}act/resume/"] = manager.post(f"{child}act/resume/")
    with out_of_reach():
        answers["down"] = manager.get(LIST)
    assert b'<table class="sync-table sync-log" id="acts"' in answers[f"{child}history/"].content
    assert [*[200] * 6, 503] == [answer.status_code for answer in answers.values()]
    links = set[str]()
    for url, answer in answers.items():
        found = Whole(answer.content)
        links |= {link for link in found.links if link.startswith(LIST) and "?" not in link}
        assert (url, sorted({*found.ids})) == (url, sorted(found.ids))
        assert (url, set()) == (url, found.named - {*found.ids})
        assert {"host-style", "host-head", "host-footer"} <= {*found.ids}, url
        assert b"host-class" in answer.content, url
        assert b'id="logout-form"' in answer.content, url
        crumb = f'&rsaquo; <a href="{LIST}">'
        assert (url != LIST) == (crumb in answer.content.decode()), url
    assert {plain + "change/", child + "change/", child + "history/"} <= links
    assert {} == {link: code for link in links if (code := manager.get(link).status_code) != 200}


@pytest.mark.parametrize(("language", "english"), [("ar", True), ("zh-hans", False)])
def test_pages_that_nobody_translated_say_in_what_language_they_are(
    language: str, english: bool, held: Callable[..., None]
) -> None:
    manager, page = staff("view_locks", "manage_locks"), f"{LIST}exports/"
    held("exports", 3)
    with override_settings(LANGUAGE_CODE=language), translation.override(language):
        shown = [
            manager.get(LIST),
            manager.get(page + "change/"),
            manager.post(page + "act/pause/"),
        ]
        with out_of_reach():
            shown.append(manager.get(LIST))
    marked = re.compile(rb'<div id="content-main"[^>]* lang="en" dir="ltr"')
    assert [english] * 4 == [bool(marked.search(answer.content)) for answer in shown]


def test_a_policys_page_lists_its_keys_and_a_keys_page_no_others(
    viewer: Client, held: Callable[..., None]
) -> None:
    for key in "12":
        held("tenants", 3, key=key)
    eventually(lambda: listed("tenants@1", "tenants@2"))
    pages = [f"{LIST}{quoted('tenants', key)}/change/" for key in (None, "1")]
    shown = [viewer.get(page).content.decode() for page in pages]
    assert [True, False] == [f"{quoted('tenants', '2')}/change/" in page for page in shown]
    assert f'<a href="{LIST}tenants/change/"><bdi>tenants</bdi></a>' in shown[1]  # the way up


@pytest.mark.parametrize("unknown", ["nobody", "%7Bx%7D:leases", "a%00b", "x" * 500, "%252F"])
def test_a_name_that_is_not_ours_is_not_found(viewer: Client, unknown: str) -> None:
    assert viewer.get(f"{LIST}{unknown}/change/").status_code == 404
    assert viewer.get(f"{LIST}{unknown}/live/").status_code == 404
    assert viewer.get(f"{LIST}{unknown}/data/").status_code == 404


@pytest.mark.parametrize("unknown", ["%7Bx%7D:leases", "a%00b", "x" * 500])
def test_what_can_be_no_name_has_no_history(viewer: Client, unknown: str) -> None:
    response = viewer.get(f"{LIST}{unknown}/history/")
    assert (302, "/admin/") == (response.status_code, response["Location"])  # as of any model
    name = urllib.parse.unquote(unknown)
    assert name == str(Name(id=name))


def test_a_site_of_ones_own_keeps_its_own_addresses(held: Callable[..., None]) -> None:
    held("elsewhere", 2)
    with override_settings(ROOT_URLCONF=__name__):
        client = staff("manage_locks")
        eventually(lambda: listed("elsewhere"))
        shown = client.get("/ops/django_redis_sync/name/").content.decode()
        assert 'href="/ops/django_redis_sync/name/elsewhere/change/"' in shown
        assert "/ops/django_redis_sync/name/live/" in shown
        shown = client.get("/ops/django_redis_sync/name/elsewhere/change/").content.decode()
        assert '"/admin/' not in shown
        response = client.post("/ops/django_redis_sync/name/elsewhere/act/pause/", {"confirm": "y"})
        assert response["Location"] == "/ops/django_redis_sync/name/elsewhere/change/"


# Down, or wrong


def out_of_reach() -> override_settings:
    """Settings whose Redis gives no answer."""
    return override_settings(CACHES=cache(f"redis://127.0.0.1:{free_port()}/0"))


def broken(viewer: Client, **changed: object) -> str:
    """What all pages say while the settings are these; they answer, and no more."""
    with override_settings(**changed):
        for where in ("", "live/", "exports/change/", "exports/live/", "?o=use"):
            response = viewer.get(LIST + where)
            assert response.status_code == 503
        return viewer.get(LIST).content.decode()


def cache(location: str, **options: object) -> dict[str, object]:
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location,
            "OPTIONS": options,
        }
    }


def test_redis_down_is_said_with_the_remedy(viewer: Client) -> None:
    said = broken(viewer, CACHES=cache(f"redis://:hunter2@127.0.0.1:{free_port()}/0"))

    assert "Check that the server runs" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "changed",
    [
        {"CACHES": cache("nonsense://:hunter2@host")},
        {"CACHES": cache("redis://:hunter2#@host:x/0")},
        {"CACHES": cache("")},
        {"CACHES": cache("redis://127.0.0.1", CLIENT_CLASS="no.such.Client")},
        {"CACHES": {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}},
        {"REDIS_SYNC": {"CACHE": "nowhere"}},
        {"REDIS_SYNC": {"TYPO": 1}},
    ],
)
def test_wrong_settings_are_said_with_the_remedy(
    viewer: Client, changed: dict[str, object]
) -> None:
    said = broken(viewer, **changed)

    assert "Correct REDIS_SYNC or CACHES" in said
    assert "hunter2" not in said


def test_something_else_under_our_keys_is_said(viewer: Client, raw: object) -> None:
    with Lock("mine"):
        keys = [key for key in raw.keys("*") if key.endswith(b":info")]  # type: ignore[attr-defined]
        assert keys == []
        from django_redis_sync import conf
        from django_redis_sync.protocol.keys import keys_of

        raw.set(keys_of(conf.current().prefix("default"), "mine").info, "x")  # type: ignore[attr-defined]
        response = viewer.get(LIST + "mine/change/")
        raw.delete(keys_of(conf.current().prefix("default"), "mine").info)  # type: ignore[attr-defined]
    assert response.status_code == 503
    assert "errornote" in response.content.decode()


@pytest.mark.parametrize("where", ["/admin/", "/admin/login/", LIST, LIST + "live/"])
@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_misspelt_setting_leaves_the_admin_open_under_the_middleware(
    viewer: Client, settings: Any, where: str, asgi: bool
) -> None:
    """Where it is told; whatever else is limited fails, as it would with any wrong settings."""
    limits = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, limits]
    settings.REDIS_SYNC = {"TIMOUT": 3}
    client = AsyncClient() if asgi else viewer
    client.cookies = viewer.cookies
    get = async_to_sync(client.get) if asgi else client.get
    response = get(where)
    if where.startswith(LIST):
        assert 503 == response.status_code
        assert "TIMOUT" in response.content.decode()
    else:
        assert response.status_code in (200, 302)
    with pytest.raises(ImproperlyConfigured, match="TIMOUT"):
        get("/plain/")


def test_the_last_hour_stands_above_the_rows(viewer: Client, held: Callable[..., None]) -> None:
    held("exports", 4)
    shown = viewer.get(LIST + "exports/change/").content.decode()
    order = [shown.index(f'id="{part}"') for part in ("now", "past", "holders", "waiters")]
    assert order == sorted(order)


def test_a_user_or_an_address_is_found_among_all_policies(
    viewer: Client, held: Callable[..., None]
) -> None:
    address = identity.digest("ip", "10.0.0.1")
    held("found-a", 3, key="4711")
    held("found-b", 3, key="4711")
    held("found-b", 3, key=address)
    eventually(lambda: listed("found-a@4711", "found-b@4711", f"found-b@{address}"))
    shown = shown_list(viewer, query="?q=4711")
    assert "found-a@4711</bdi>" in shown and "found-b@4711</bdi>" in shown
    assert f"found-b@{address}</bdi>" in shown_list(viewer, query="?q=10.0.0.1")
    shown = shown_list(viewer, query="?q=found-b@4711")
    assert "found-b@4711</bdi>" in shown and "found-a@4711</bdi>" not in shown
    page = viewer.get(LIST + "found-b/change/?q=10.0.0.1").content.decode()
    assert 1 == page.count(f"found-b@{address}</bdi>") and "found-b@4711</bdi>" not in page
    held("found-c", 3)
    none = viewer.get(LIST + "found-b/change/?q=nobody").content.decode()
    # What is sought has a place to be changed in, and a way back.
    assert 'id="keys"' in page and 'id="keys"' in none and "No name holds “nobody”" in none
    assert 'id="keys"' not in viewer.get(LIST + "found-c/change/?q=4711").content.decode()


def test_machines_read_what_the_pages_show(viewer: Client, held: Callable[..., None]) -> None:
    for key in ("2", "10"):
        held("data-api", 3, key=key)
    held("data-solo", 2)
    eventually(lambda: listed("data-api@2", "data-api@10", "data-solo"))
    found = viewer.get(LIST + "data/?q=data-").json()
    assert (2, "name", 1, 1) == (found["found"], found["order"], found["page"], found["pages"])
    assert [{"name": "data-api", "keys": 2, "read": 2}] == found["policies"]
    assert {"data-api@2", "data-api@10", "data-solo"} == {n["display"] for n in found["names"]}
    one = viewer.get(LIST + "data-solo/data/").json()
    assert (1, 2, 1) == tuple(one["names"][0][part] for part in ("in_use", "limit", "holding"))
    assert 1 == one["names"][0]["recent"]["granted"]
    assert "keys" not in one and 1 == one["found"]
    assert "keys" not in viewer.get(LIST + f"{quoted('data-api', '2')}/data/").json()
    keys = viewer.get(LIST + "data-api/data/").json()["keys"]
    assert ["data-api@2", "data-api@10"] == [name["display"] for name in keys["names"]]
    assert {(1, 1)} == {(each["keys"], each["read"]) for each in keys["policies"]}


@pytest.mark.parametrize("where", ["data/", "exports/data/"])
def test_machines_need_the_permission_too(where: str) -> None:
    assert 403 == staff().get(LIST + where).status_code
    assert 302 == Client().get(LIST + where).status_code
    assert 405 == staff("view_locks").post(LIST + where).status_code


def test_machines_are_told_that_redis_is_down(viewer: Client) -> None:
    with override_settings(CACHES=cache(f"redis://:hunter2@127.0.0.1:{free_port()}/0")):
        response = viewer.get(LIST + "data/")
    assert 503 == response.status_code
    assert {"error", "remedy"} == set(response.json()) and b"hunter2" not in response.content


# Charts and words


@pytest.mark.parametrize(
    ("in_use", "limit", "waiting", "bar"),
    [
        (0, 4, 0, ("0", "calm")),
        (1, 3, 0, ("33.3", "calm")),
        (3, 4, 0, ("75", "busy")),
        (9, 4, 0, ("100", "busy")),
        (4, 4, 1, ("100", "full")),
        (1, 1, 0, ("100", "calm")),
        (1, 1, 3, ("100", "full")),
        (0, None, 0, ("0", "calm")),
        (2, None, 0, ("100", "calm")),
    ],
)
def test_a_bar_is_as_wide_as_the_use(
    in_use: int, limit: int | None, waiting: int, bar: tuple[str, str]
) -> None:
    assert charts.bar(in_use, limit, waiting) == charts.Bar(*bar)


def test_a_long_history_is_drawn_in_as_many_steps_as_a_short_one() -> None:
    from datetime import datetime, timedelta, timezone

    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    rows = [
        (start + timedelta(minutes=n), Counters(peak=n % 7, waited=1, rejected=2))
        for n in range(360)
    ]
    steps = charts.steps(rows)
    drawn = charts.chart(steps, 4)

    assert len(steps) == charts.STEPS
    assert sum(step.waited for step in steps) == 360
    assert (drawn.use_top, drawn.count_top) == (6, 18)
    assert drawn.limit_y == "33.3"
    assert len(drawn.waits) == len(drawn.rejections) == charts.STEPS
    assert drawn.waits[0].y == "66.7" and drawn.rejections[0].y == "0"


def test_numbers_in_drawings_are_written_for_svg_in_every_language(viewer: Client) -> None:
    with (
        override_settings(LANGUAGE_CODE="de", USE_THOUSAND_SEPARATOR=True),
        Semaphore("exports", 3) as lease,
    ):
        shown = viewer.get(LIST + "exports/change/").content.decode()
        actions.resize("exports", None, 3000)
        form = staff("manage_locks").get(LIST + "exports/change/").content.decode()
    assert 'width="33.3"' in shown and 'id="resize-limit" form="sync-resize" value="3000"' in form
    assert str(lease.fence) in shown
