"""Shares of requests: the limits, and how shares take turns. Most tests run with Redis, and again
while Redis is down."""

import pytest

from django_redis_sync import semaphore_required
from tests.behaviour.both import eventually
from tests.request_site.project import BOTH, EVERYWHERE, OBEYING, in_use, reasons

pytestmark = pytest.mark.promise(32)


def tenant_of(request):
    return request.GET.get("tenant")


@pytest.fixture(params=["redis", "local"])
def anywhere(request, project):
    """Return the project: with Redis in one run of the test, and without Redis in the other run."""
    project.configure(REQUESTS={"max_waiting_threads": 99})
    if request.param == "local":
        project.lose_redis()
    return project


@pytest.fixture
def waiting(rejections):
    """Return a function that returns the number of waiters. The function sends a request, and reads
    the number from the rejection of this request."""

    @semaphore_required("one", limit=1, share=tenant_of, share_limit=1)
    def rejected(request):
        pytest.fail("a permit is free")

    def number(project, **query):
        project.serve(rejected=rejected)
        project.status("rejected", **query)
        return rejections[-1]["rejection"].waiting

    return number


@EVERYWHERE
def test_rejection_shows_whether_the_limit_or_the_share_limit_was_reached(anywhere, rejections):
    anywhere.limit(limit=3, share=tenant_of, share_limit=2)
    flood = [anywhere.visit(tenant="a").entered() for _ in range(2)]
    rejected = anywhere.get(tenant="a")
    assert 429 == rejected.status_code and 1 <= int(rejected["Retry-After"]) <= 120
    other = anywhere.visit(tenant="b").entered()
    assert [503, 429] == [anywhere.status(tenant=tenant) for tenant in "ba"]
    assert ["share", "full", "share"] == reasons(rejections)
    assert [None, "a"] == [*{sent["key"] for sent in rejections}, rejections[0]["share"]]
    assert 200 == flood[0].end()
    third = anywhere.visit(tenant="a").entered()
    assert [200] * 3 == [visit.end() for visit in (flood[1], other, third)]


@BOTH
def test_rejection_after_a_timeout_shows_which_limit_blocked_the_request(anywhere, rejections):
    anywhere.limit(limit=2, share=tenant_of, share_limit=1, blocking_timeout=0.3)
    inside = [anywhere.visit(tenant="a").entered()]
    assert 429 == anywhere.status(tenant="a")
    inside.append(anywhere.visit(tenant="b").entered())
    assert [429, 503] == [anywhere.status(tenant=tenant) for tenant in "ac"]
    assert ["share", "share", "timeout"] == reasons(rejections)
    assert [200, 200] == [visit.end() for visit in inside]


@BOTH
def test_shares_take_turns_when_waiting_requests_are_admitted(anywhere, waiting):
    anywhere.limit(limit=1, share=tenant_of, blocking_timeout=50)
    inside, queue = anywhere.visit(tenant="a").entered(), []
    for tenant in "aaabcb":
        queue.append(anywhere.visit(tenant=tenant))
        eventually(lambda: waiting(anywhere) == len(queue))
    first, second, third, of_b, of_c, later_of_b = queue
    for admitted in (first, of_b, of_c, second, later_of_b, third):
        assert not any(visit.inside.is_set() for visit in queue)
        assert 200 == inside.end()
        inside = admitted.entered()
        queue.remove(admitted)
    assert 200 == inside.end()


def test_next_waiter_of_a_share_gets_the_turn_of_a_waiter_that_gives_up(project, waiting):
    project.lose_redis()
    project.configure(REQUESTS={"max_waiting_threads": 99})
    project.limit(share=tenant_of, blocking_timeout=50)
    project.limit("hasty", share=tenant_of, blocking_timeout=3)
    inside = project.visit(tenant="a").entered()
    hasty = project.visit("hasty", tenant="b")
    eventually(lambda: waiting(project) == 1)
    of_c = project.visit(tenant="c")
    eventually(lambda: waiting(project) == 2)
    of_b = project.visit(tenant="b")
    eventually(lambda: waiting(project) == 3)
    assert 503 == hasty.status
    assert [200, 200, 200] == [inside.end(), of_b.entered().end(), of_c.entered().end()]


@BOTH
def test_waiter_of_a_full_share_does_not_block_other_shares(anywhere, waiting):
    anywhere.limit(limit=2, share=tenant_of, share_limit=1, blocking_timeout=50)
    first, second = anywhere.visit(tenant="a").entered(), anywhere.visit(tenant="a")
    eventually(lambda: waiting(anywhere, tenant="a") == 1)
    other = anywhere.visit(tenant="b").entered()
    assert not second.inside.is_set()
    assert 200 == first.end()
    assert [200, 200] == [visit.entered().end() for visit in (second, other)]


def tier_of(request):
    return int(request.GET.get("tier", 1))


@pytest.mark.parametrize(
    ("options", "admitted", "rejected", "status"),
    [
        ({"limit": 3}, [{}, {"tenant": "a"}], {}, 429),  # requests without a tenant are one share
        (
            {"limit": 9, "share_limit": tier_of},
            [{"tenant": "a", "tier": "2"}, {"tenant": "a", "tier": "2"}, {"tenant": "b"}],
            {"tenant": "a", "tier": "2"},
            429,
        ),
        ({"limit": 9, "share_limit": tier_of}, [{"tenant": "b"}], {"tenant": "b"}, 429),
        (
            {"key": lambda request: request.GET["key"]},
            [{"tenant": "a", "key": "x"}, {"tenant": "a", "key": "y"}],
            {"tenant": "a", "key": "x"},
            429,
        ),
        ({"status": 420}, [{"tenant": "a"}], {"tenant": "a"}, 420),
        ({"status": 420}, [{"tenant": "a"}, {"tenant": "b"}], {"tenant": "c"}, 420),
        *(
            ({"limit": 4, "share": "user"}, [{"user": "7"}, {"user": "8"}, {}], rejected, 429)
            for rejected in ({"user": "7"}, {})  # all anonymous users are one share
        ),
    ],
)
@BOTH
def test_options_decide_which_requests_count_toward_the_same_limit(
    anywhere, options, admitted, rejected, status
):
    anywhere.settings.MIDDLEWARE = [OBEYING]
    anywhere.limit(**{"limit": 2, "share": tenant_of, "share_limit": 1, **options})
    visits = [anywhere.visit(**query).entered() for query in admitted]
    assert status == anywhere.status(**rejected)
    assert [200] * len(visits) == [visit.end() for visit in visits]


@BOTH
def test_shadow_mode_reports_which_limit_would_have_rejected_the_request(project, rejections):
    project.limit(limit=2, share=tenant_of, share_limit=1, enforce=False)
    visits = [project.visit(tenant=tenant).entered() for tenant in "aabc"]
    assert [200] * 4 == [visit.end() for visit in visits]
    assert ["share", "full", "full"] == reasons(rejections)
    assert not any(sent["enforced"] for sent in rejections)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("share", KeyError("tenant"), "tenant"),
        ("share", 1.5, "share must be a str"),
        ("share", True, "share must be a str"),
        ("share", "", "a share must not be empty"),
        ("share", "x" * 201, "a share must not be longer than 200 bytes"),
        ("share", "two\nlines", "control character"),
        ("share_limit", KeyError("tier"), "tier"),
        ("share_limit", 0, "share_limit must be from 1"),
        ("share_limit", "3", "share_limit must be an int"),
        ("limit", 0, "limit must be from 1"),
    ],
)
@BOTH
def test_request_is_not_admitted_if_the_callable_of_an_option_fails(option, value, error, project):
    def fails(request):
        if isinstance(value, Exception):
            raise value
        return value

    options = {"limit": 2, "share": tenant_of, "share_limit": 1, option: fails}
    project.limit(body=lambda request: pytest.fail("the request was admitted"), **options)
    with pytest.raises((KeyError, TypeError, ValueError), match=error):
        project.get()
    assert 0 == in_use()
