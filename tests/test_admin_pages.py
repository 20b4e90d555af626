"""The admin's pages: what they show, and how they explain that Redis is unavailable."""

import html
import math
import re
import time
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
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path, resolve, reverse
from django.utils import translation

from django_redis_sync import LeaseLost, Lock, ReadWriteLock, Semaphore
from django_redis_sync.admin import NameAdmin
from django_redis_sync.console import pages
from django_redis_sync.exceptions import Unavailable
from django_redis_sync.limits import identity
from django_redis_sync.models import Name
from django_redis_sync.operators import actions
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import eventually
from tests.support import statuses as make
from tests.support.keepers import listed
from tests.support.statuses import ago, holder, waiter
from tests.test_admin_actions import client_of, unreachable_redis

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.promise(25),
]

LIST = "/admin/django_redis_sync/name/"
EVIL = "<img src=x onerror=alert(1)>"

own_site = admin.AdminSite(name="operations")
own_site.register(Name, NameAdmin)
urlpatterns = [
    path("admin/", admin.site.urls),
    path("ops/", own_site.urls),
    path("plain/", lambda request: HttpResponse("plain")),
]


@pytest.fixture
def viewer() -> Client:
    return client_of("view_locks")


@pytest.fixture
def held() -> Iterator[Callable[..., None]]:
    """Return a function that takes a permit and holds it until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Semaphore(*args, **options))


def shown_list(client: Client, *names: str, query: str = "") -> str:
    """Return the list page as soon as the registry, written in the background, has these names.

    A process registers a name at most once a minute, so each test lists names of its own.
    """
    eventually(lambda: listed(*names))
    response = client.get(LIST + query)
    assert response.status_code == 200
    return response.content.decode()


def test_admin_permits_viewing_but_not_adding_changing_or_deleting(rf: RequestFactory) -> None:
    def allowed(user: User) -> list[bool]:
        request, entry = rf.get("/"), NameAdmin(Name, admin.site)
        request.user = user
        words = ("module", "view", "add", "change", "delete")
        return [getattr(entry, f"has_{word}_permission")(request) for word in words]

    assert [True, True, False, False, False] == allowed(User(is_superuser=True, is_active=True))
    assert [False] * 5 == allowed(User.objects.create_user("nobody", is_staff=True))


def test_admin_index_lists_the_entry_only_with_the_view_permission(viewer: Client) -> None:
    assert "Locks and semaphores" in viewer.get("/admin/").content.decode()
    assert "Locks and semaphores" not in client_of().get("/admin/").content.decode()


def test_history_view_keeps_the_extra_context_of_a_subclass(
    viewer: Client, rf: RequestFactory
) -> None:
    request = rf.get("/")
    request.user = User(is_superuser=True, is_active=True)
    shown: Any = NameAdmin(Name, admin.site).history_view(request, "exports", {"motto": "x"})
    assert ("x", []) == (shown.context_data["motto"], [*shown.context_data["acts"]])


def test_url_functions_have_the_attribute_model_admin() -> None:
    for where in ("", "live/", "data/", "exports/change/", "exports/live/", "exports/act/pause/"):
        owner: Any = getattr(resolve(LIST + where).func, "model_admin", None)
        assert isinstance(owner, NameAdmin), where


def test_manage_permission_includes_viewing() -> None:
    assert client_of("manage_locks").get(LIST).status_code == 200


@pytest.mark.parametrize(
    "where", ["", "live/", "data/", "exports/change/", "exports/live/", "exports/data/"]
)
def test_pages_need_the_view_permission(where: str) -> None:
    assert client_of().get(LIST + where).status_code == 403
    assert Client().get(LIST + where).status_code == 302


def test_pages_reject_adding_deleting_and_posting(viewer: Client) -> None:
    assert viewer.get(LIST + "add/").status_code == 403
    assert viewer.get(LIST + "exports/delete/").status_code == 403
    for where in ("exports/change/", "data/", "exports/data/"):
        assert viewer.post(LIST + where).status_code == 405


def test_list_shows_permits_in_use_and_the_limit(viewer: Client, held: Callable[..., None]) -> None:
    held("first-exports", 4)
    held("first-exports", 4)

    shown = shown_list(viewer, "first-exports")

    assert "first-exports" in shown
    assert "2 / 4" in shown
    assert '<rect class="sync-fill" width="50" height="8"/>' in shown


def test_list_shows_how_many_leases_were_lost(viewer: Client) -> None:
    with pytest.raises(LeaseLost), Lock("slow-job", timeout=0.1):
        time.sleep(0.2)

    eventually(lambda: "1 / 0" in shown_list(viewer, "slow-job"))


def test_list_reports_unreadable_names_and_shows_the_rest(
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


def test_list_can_be_searched_sorted_and_paged(
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
    assert 'name="q" value="-BET"' in shown  # the form keeps the search
    assert "No name contains" in shown_list(viewer, query=f"?q={EVIL}")

    assert "list-beta</bdi>" in shown_list(viewer, query="?q=+list-beta+")

    monkeypatch.setattr(pages, "PER_PAGE", 2)
    shown = html.unescape(shown_list(viewer, query="?q=list-&o=-use"))
    assert "Page 1 of 2" in shown and 'rel="prev"' not in shown
    # Links keep the search. A second click on a header reverses the order.
    assert 'href="?q=list-&o=-use&p=2"' in shown and 'id="sort-use" href="?q=list-&o=use"' in shown
    assert 'id="sort-waiting" href="?q=list-&o=waiting"' in shown
    shown = html.unescape(shown_list(viewer, query="?q=list-&p=2"))
    assert "list-gamma</bdi>" in shown and 'rel="next"' not in shown
    assert 'href="?q=list-&o=trouble&p=1"' in shown and 'data-url="/admin' in shown
    assert "live/?q=list-&p=2" in shown


def test_configured_name_has_a_page_before_it_is_used(viewer: Client) -> None:
    with override_settings(REDIS_SYNC={"SEMAPHORES": {"unused": {"limit": 2}}}):
        assert "unused" in viewer.get(LIST).content.decode()
        assert viewer.get(LIST + "unused/change/").status_code == 200


@pytest.mark.promise(28)
def test_name_page_shows_holders_but_not_their_tokens(viewer: Client) -> None:
    with Semaphore("exports", 3, label="nightly_report", timeout=math.inf) as lease:
        shown = viewer.get(LIST + "exports/change/").content.decode()

    assert "nightly_report" in shown
    assert str(lease.fence) in shown
    assert "never ends" in shown
    assert lease.token[:8] in shown
    assert lease.token not in shown


def test_cell_labels_match_the_column_headers(viewer: Client) -> None:
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


def test_rejections_and_timeouts_are_summed_in_the_list_but_not_on_the_page(
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


def test_name_page_shows_overrides_and_a_writer(viewer: Client) -> None:
    actions.resize("exports", None, 9)
    actions.pause("exports")
    shown = viewer.get(LIST + "exports/change/").content.decode()
    assert "An operator set the limit to 9" in shown
    assert "No new permit is granted" in shown

    with ReadWriteLock("table").write:
        shown = viewer.get(LIST + "table/change/").content.decode()
    assert "by a writer" in shown


def test_html_in_names_and_labels_is_escaped(viewer: Client, held: Callable[..., None]) -> None:
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
def test_every_valid_name_has_a_page(viewer: Client, name: str, key: str | None) -> None:
    with Semaphore(name, 2, key=key):
        url, live, data = (
            reverse(f"admin:django_redis_sync_name_{page}", args=[quoted(name, key)])
            for page in ("change", "live_name", "data_name")
        )
        response = viewer.get(url)
        assert 200 == viewer.get(live).status_code
        (found,) = viewer.get(data).json()["names"]

    assert not {".", ".."} & {*url.split("/")}  # a browser would go up there
    assert (name, key) == (found["name"], found["key"])
    assert response.status_code == 200
    assert response.context["status"].name == name
    assert response.context["status"].key == key


class ParsedPage(HTMLParser):
    """The ids of a page, the ids that its attributes refer to, and the targets of its links."""

    REFERRING = ("for", "form", "aria-labelledby", "aria-describedby", "aria-controls")

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.ids, self.referred, self.links = list[str](), set[str](), set[str]()
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.referred.update(id for name in self.REFERRING for id in given.get(name, "").split())
        self.links.update([given["href"]] if tag == "a" else [])


SITE = """{% extends "admin/base.html" %}
{% block extrastyle %}<link id="host-style">{% endblock %}
{% block extrahead %}<meta id="host-head">{% endblock %}
{% block bodyclass %}host-class{% endblock %}
{% block footer %}<p id="host-footer"></p>{% endblock %}"""


@pytest.fixture
def host_templates(settings: Any) -> None:
    """A project that overrides `admin/base_site.html`."""
    (engine,) = settings.TEMPLATES
    loaders = [
        ("django.template.loaders.locmem.Loader", {"admin/base_site.html": SITE}),
        "django.template.loaders.app_directories.Loader",
    ]
    cached = [("django.template.loaders.cached.Loader", loaders)]
    options = {**engine.get("OPTIONS", {}), "loaders": cached}
    settings.TEMPLATES = [{**engine, "APP_DIRS": False, "OPTIONS": options}]


@pytest.mark.usefixtures("host_templates")
def test_pages_extend_the_project_templates_and_have_no_dead_links(
    held: Callable[..., None],
) -> None:
    name, key, manager = "whole_2F/1?#", "k_40/2", client_of("view_locks", "manage_locks")
    held(name, 2)
    held(name, 2, key=key)
    eventually(lambda: listed(Name.of(name, key).id))
    plain, child = (f"{LIST}{quoted(name, each)}/" for each in (None, key))
    manager.post(f"{child}act/pause/", {"reason": "a"})
    shown = [LIST, *(one + end for one in (plain, child) for end in ("change/", "history/"))]
    answers = {url: manager.get(url) for url in shown}
    answers[f"{child}act/resume/"] = manager.get(f"{child}act/resume/")
    with unreachable_redis():
        answers["down"] = manager.get(LIST)
    assert b'<table class="sync-table sync-log" id="acts"' in answers[f"{child}history/"].content
    assert [*[200] * 6, 503] == [answer.status_code for answer in answers.values()]
    links = set[str]()
    for url, answer in answers.items():
        found = ParsedPage(answer.content)
        links |= {link for link in found.links if link.startswith(LIST) and "?" not in link}
        assert (url, sorted({*found.ids})) == (url, sorted(found.ids))
        assert (url, set()) == (url, found.referred - {*found.ids})
        assert {"host-style", "host-head", "host-footer"} <= {*found.ids}, url
        assert b"host-class" in answer.content, url
        assert b'id="logout-form"' in answer.content, url
        crumb = f'<li><a href="{LIST}">'
        assert (url != LIST) == (crumb in answer.content.decode()), url
    assert {plain + "change/", child + "change/", child + "history/"} <= links
    assert {} == {link: code for link in links if (code := manager.get(link).status_code) != 200}


@pytest.mark.parametrize(("language", "english"), [("ar", True), ("zh-hans", False)])
def test_untranslated_pages_declare_english(
    language: str, english: bool, held: Callable[..., None]
) -> None:
    manager, page = client_of("view_locks", "manage_locks"), f"{LIST}exports/"
    held("exports", 3)
    with override_settings(LANGUAGE_CODE=language), translation.override(language):
        shown = [
            manager.get(LIST),
            manager.get(page + "change/"),
            manager.get(page + "act/pause/"),
        ]
        with unreachable_redis():
            shown.append(manager.get(LIST))
    marked = re.compile(rb'<div id="content-main"[^>]* lang="en" dir="ltr"')
    assert [english] * 4 == [bool(marked.search(answer.content)) for answer in shown]


def test_policy_page_lists_its_keys_and_a_key_links_to_its_policy(
    viewer: Client, held: Callable[..., None]
) -> None:
    for key in "12":
        held("tenants", 3, key=key)
    eventually(lambda: listed("tenants@1", "tenants@2"))
    pages = [f"{LIST}{quoted('tenants', key)}/change/" for key in (None, "1")]
    shown = [viewer.get(page).content.decode() for page in pages]
    assert [True, False] == [f"{quoted('tenants', '2')}/change/" in page for page in shown]
    assert f'<a id="policy" href="{LIST}tenants/change/">' in shown[1]
    assert b"2 in 2 keys" in viewer.get(LIST).content


@pytest.mark.parametrize("unknown", ["unused", "%7Bx%7D:leases", "a%00b", "x" * 500, "%252F"])
def test_unknown_name_is_not_found(viewer: Client, unknown: str) -> None:
    assert viewer.get(f"{LIST}{unknown}/change/").status_code == 404
    assert viewer.get(f"{LIST}{unknown}/live/").status_code == 404
    assert viewer.get(f"{LIST}{unknown}/data/").status_code == 404


@pytest.mark.parametrize("unknown", ["%7Bx%7D:leases", "a%00b", "x" * 500])
def test_invalid_name_has_no_history(viewer: Client, unknown: str) -> None:
    response = viewer.get(f"{LIST}{unknown}/history/")
    assert (302, "/admin/") == (response.status_code, response["Location"])  # as for any model
    name = urllib.parse.unquote(unknown)
    assert name == str(Name(id=name))


def test_custom_admin_site_keeps_its_own_addresses(held: Callable[..., None]) -> None:
    held("elsewhere", 2)
    with override_settings(ROOT_URLCONF=__name__):
        client = client_of("manage_locks")
        eventually(lambda: listed("elsewhere"))
        shown = client.get("/ops/django_redis_sync/name/").content.decode()
        assert 'href="/ops/django_redis_sync/name/elsewhere/change/"' in shown
        assert "/ops/django_redis_sync/name/live/" in shown
        shown = client.get("/ops/django_redis_sync/name/elsewhere/change/").content.decode()
        assert '"/admin/' not in shown
        response = client.post("/ops/django_redis_sync/name/elsewhere/act/pause/", {})
        assert response["Location"] == "/ops/django_redis_sync/name/elsewhere/change/"


# Redis is down, or the settings are wrong


def cache(location: str, **options: object) -> dict[str, object]:
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location,
            "OPTIONS": options,
        }
    }


@pytest.mark.promise(28)
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
def test_wrong_settings_are_explained_without_the_password(
    viewer: Client, changed: dict[str, object]
) -> None:
    with override_settings(**changed):
        for where in ("", "live/", "exports/change/", "exports/live/", "?o=use"):
            response = viewer.get(LIST + where)
            text = response.content.decode()
            assert 503 == response.status_code
            assert "Correct REDIS_SYNC or CACHES" in text and "hunter2" not in text


@pytest.mark.promise(28)
def test_errors_are_shown_without_the_password_of_a_url(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("Error at redis://me:s3cret@h:1/0", maybe_executed=False)

    monkeypatch.setattr(pages, "statuses", fail)
    for where in ("change/", "live/", "data/"):
        response = viewer.get(f"{LIST}exports/{where}")
        text = response.content.decode()
        assert 503 == response.status_code
        assert "***@h:1/0" in text and "s3cret" not in text


def test_foreign_value_under_a_key_is_explained(viewer: Client, raw: redis.Redis) -> None:
    info = keys_of(settings.PREFIX, "mine").info
    with Lock("mine"):
        assert not raw.exists(info), "the name is compact"
        raw.set(info, "x")
        response = viewer.get(LIST + "mine/change/")
        raw.delete(info)
    assert response.status_code == 503
    assert "errornote" in response.content.decode()


@pytest.mark.parametrize("where", ["/admin/", "/admin/login/", LIST, LIST + "live/"])
@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_admin_answers_under_the_middleware_when_a_setting_is_misspelled(
    viewer: Client, settings: Any, where: str, asgi: bool
) -> None:
    """The admin's pages of locks explain the mistake. Pages outside of the admin fail."""
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


def test_search_finds_a_user_or_address_in_all_policies(
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
    # The section of the keys stays even if no key matches.
    assert 'id="keys"' in page and 'id="keys"' in none and "No name contains “nobody”" in none
    assert 'id="keys"' not in viewer.get(LIST + "found-c/change/?q=4711").content.decode()


def test_data_has_what_the_pages_show(viewer: Client, held: Callable[..., None]) -> None:
    for key in ("2", "10"):
        held("data-api", 3, key=key)
    held("data-solo", 2)
    eventually(lambda: listed("data-api@2", "data-api@10", "data-solo"))
    found = viewer.get(LIST + "data/?q=data-").json()
    assert (2, "trouble", 1, 1) == (found["found"], found["order"], found["page"], found["pages"])
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


def test_data_explains_that_redis_is_down(viewer: Client) -> None:
    with unreachable_redis():
        response = viewer.get(LIST + "data/")
    assert 503 == response.status_code
    assert {"error", "remedy"} == set(response.json()) and b"hunter2" not in response.content


# The page of a name


@pytest.fixture
def shown_name(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that shows the page of a name in a given state, as text without tags."""

    def show(**state: Any) -> str:
        monkeypatch.setattr(pages, "statuses", lambda *_, **__: [make.status(**state)])
        page = viewer.get(LIST + "exports/change/").content.decode()
        content = page[page.index('id="sync-live"') :]
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", content)).split())

    return show


def test_name_page_explains_unusual_holders_waiters_and_limits(
    shown_name: Callable[..., str],
) -> None:
    text = shown_name(
        holders=(holder("aaa"), holder("bbb", state="kept"), holder("ccc", state="handed")),
        waiters=(waiter("www", permits=2), waiter("xxx", 2, alive=False, permits=0)),
        conflicting_limit=(4, ago(60)),
        callers_limit=3,
        holding=4,
        waiting=7,
    )
    assert "3 of 3 in use, 7 waiting" in text
    assert "Callers disagree on the limit: 3 now, 4 before" in text
    parts = re.split(r"\b(aaa|bbb|ccc|www|xxx)\b", text)
    about = dict(zip(parts[1::2], parts[2::2], strict=True))
    for note, id in (
        ("released, retained by min_hold", "bbb"),
        ("just handed over", "ccc"),
        ("heartbeat missed", "xxx"),
    ):
        assert [id] == [each for each in about if note in about[each]], note
    assert "its process is dead, the next waiter gets the permit within 5 s" in text
    assert "0 ms 2 " in about["www"] and "0 ms all " in about["xxx"]
    assert "and 1 more" in about["ccc"] and "and 5 more" in about["xxx"]


def test_name_page_shows_holders_and_waiters_before_actions_and_history(
    viewer: Client, held: Callable[..., None]
) -> None:
    held("exports", 4)
    page = viewer.get(LIST + "exports/change/").content.decode()
    order = [page.index(f'id="{part}"') for part in ("now", "holders", "waiters", "act", "past")]
    assert sorted(order) == order


def test_name_page_shows_times_as_a_date_and_as_an_age(shown_name: Callable[..., str]) -> None:
    text = shown_name(holders=(holder("aaa", held=65),), waiters=(waiter("www", waits=5),))
    assert re.search(r"2026-01-31 \d\d:58:55 1 min 5 s", text) and "5.0 s" in text


def test_charts_links_and_forms_have_unlocalized_numbers(viewer: Client) -> None:
    with (
        override_settings(LANGUAGE_CODE="de", USE_THOUSAND_SEPARATOR=True),
        Semaphore("exports", 3) as lease,
    ):
        page = viewer.get(LIST + "exports/change/").content.decode()
        actions.resize("exports", None, 3000)
        manager = client_of("view_locks", "manage_locks")
        links = manager.get(LIST + "exports/change/").content.decode()
        form = manager.get(LIST + "exports/act/resize/?limit=3000").content.decode()
    assert 'width="33.3"' in page and f"?fence={lease.fence}" in links
    assert "act/resize/?limit=3000" in links and 'name="limit" value="3000"' in form
    assert str(lease.fence) in page


@pytest.mark.parametrize(
    ("hours", "key", "link"), [(6, None, True), (1, None, False), (6, "7", False)]
)
def test_name_page_links_to_history_of_more_than_an_hour(
    viewer: Client, settings: Any, hours: int, key: str | None, link: bool
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS_HOURS": hours}
    with Semaphore("past", 2, key=key):
        address = f"{LIST}{quoted('past', key)}/change/"
        page = viewer.get(address).content.decode()
        whole = viewer.get(address + "?history=all").content.decode()
    assert link == ('href="?history=all">The last 6 hours' in page)
    assert link == ('id="past-title">The last 6 hours<' in whole)
    assert 'id="past-title">The last hour<' in page


def test_list_shows_the_findings_of_the_doctor_and_caches_them(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = viewer.get(LIST).content.decode()
    problems, _, fine = page[page.index('id="health-title"') :].partition("checks passed")
    assert "sync-level-error" in problems or "sync-level-warning" in problems
    assert "sync-level-ok" not in problems and "sync-level-ok" in fine
    monkeypatch.setattr(pages.doctor, "examine", lambda: pytest.fail("examined again"))
    assert "Checked " in viewer.get(LIST).content.decode()


@pytest.mark.parametrize("member_down", [False, True])
def test_quorum_page_shows_its_members(
    viewer: Client, settings: Any, new_server: Callable[..., Any], member_down: bool
) -> None:
    servers = [new_server() for _ in range(3)]
    settings.CACHES = {
        **settings.CACHES,
        **{f"q{n}": cache(server.url)["default"] for n, server in enumerate(servers)},
    }
    with Lock("ledger", using=["q0", "q1", "q2"]) as lease:
        eventually(lambda: viewer.get(LIST + "ledger/change/").status_code == 200)
        if member_down:
            servers[2].kill()
        page = viewer.get(LIST + "ledger/change/").content.decode()
    assert "1 of 1 in use, 0 waiting" in page
    assert all(f"<code>q{n}</code>" in page for n in range(3))
    assert [3 - member_down, member_down] == [page.count("held by"), page.count("no answer")]
    assert f"<code>{lease.token[:8]}</code>" in page
