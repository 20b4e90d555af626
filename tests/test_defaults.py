"""The table of options in `defaults.py` applies wherever options are given."""

import inspect
import os
import shutil
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from devtools import settings_page
from django_redis_sync import Semaphore, SemaphoreRequiredMixin, conf, semaphore_required
from django_redis_sync.defaults import ENTRY, NAMED, REQUESTS, SEMAPHORE, SETTINGS
from django_redis_sync.limits.policy import parse

PACKAGE = Path(conf.__file__).parent
TABLES = {
    "settings": SETTINGS, "requests": REQUESTS, "entry": ENTRY, "named": NAMED, "code": SEMAPHORE
}  # fmt: skip

#: A value of each option that differs from its default.
OTHER = {
    "timeout": 7.0,
    "min_hold": 2.0,
    "methods": ["POST"],
    "when": lambda request: True,
    "blocking_timeout": 1.0,
    "max_waiters": 7,
    "max_hold": 60.0,
    "fair": False,
    "on_outage": "closed",
    "status": 429,
    "on_full": "raise",
    "response": print,
    "enforce": False,
    "trusted_proxies": 1,
    "ipv6_prefix": 56,
    "key": "ip",
    "share": "user",
    "share_limit": 1,
    "using": "other",
    "limit": 9,
}
#: Options of code whose values are checked. The others are flags, callbacks, or ignored.
CHECKED = SEMAPHORE.keys() - {
    "blocking", "renew", "fair", "on_lost", "thread_local", "raise_on_release_error", "sleep"
}  # fmt: skip


@pytest.fixture
def set_requests(settings):
    def set_options(**options):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": options}

    return set_options


def test_other_has_a_value_for_each_option() -> None:
    assert OTHER.keys() == ENTRY.keys()


@pytest.mark.parametrize("option", ENTRY)
def test_policy_accepts_each_option(option: str) -> None:
    policy = parse("x", {"limit": 1, option: OTHER[option]})
    assert ENTRY[option].checked(OTHER[option]) == getattr(policy, option)
    semaphore_required("x", **{option: OTHER[option]})


@pytest.mark.parametrize("option", sorted(REQUESTS.keys() & ENTRY.keys()))
def test_policy_uses_the_default_from_requests(option: str, set_requests) -> None:
    set_requests(**{option: OTHER[option]})
    assert ENTRY[option].checked(OTHER[option]) == getattr(parse("x", {"limit": 1}), option)


@pytest.mark.parametrize("option", ["limit", "key", "share", "share_limit", "using"])
def test_requests_rejects_an_option_that_belongs_into_an_entry(option: str, set_requests) -> None:
    set_requests(**{option: OTHER[option]})
    message = rf"REDIS_SYNC\['REQUESTS'\] has unknown keys: {option} \(it belongs into an entry"
    with pytest.raises(ImproperlyConfigured, match=message):
        conf.current()


def test_requests_sets_the_status_of_rejections(set_requests) -> None:
    set_requests(status=429)
    assert 429 == parse("x", {"limit": 1}).status


def test_mixin_has_an_attribute_and_a_method_for_each_option() -> None:
    for option in ENTRY:
        assert hasattr(SemaphoreRequiredMixin, f"semaphore_{option}")
        assert callable(getattr(SemaphoreRequiredMixin, f"get_semaphore_{option}"))


def test_semaphore_has_the_keywords_and_defaults_of_the_table() -> None:
    parameters = inspect.signature(Semaphore).parameters
    taken = {one.name: one.default for one in parameters.values() if one.kind is one.KEYWORD_ONLY}
    assert {row.name: row.default for row in SEMAPHORE.values()} == taken


@pytest.mark.parametrize("option", NAMED)
def test_semaphore_reads_each_named_option_from_the_settings(option: str, settings) -> None:
    entry = {"limit": 1, option: "soon"}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"x": entry}}
    with pytest.raises(ImproperlyConfigured, match=option):
        Semaphore("x").acquire()


@pytest.mark.parametrize("option", sorted(CHECKED))
def test_semaphore_rejects_an_unsuitable_value_of_each_option(option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"\b{option}\b"):
        Semaphore("x", 1, **{option: object()})


# Messages about mistakes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"SEMAPHORE": {}}, r"unknown keys: SEMAPHORE \(did you mean SEMAPHORES\?\)"),
        ({"timeout": 3}, r"timeout \(did you mean TIMEOUT\?\)"),
        ({"Cache": "x"}, r"Cache \(did you mean CACHE\?\)"),
        ({"max_waiters": 3}, r"max_waiters \(it belongs into REQUESTS\)"),
        ({"zzz": 3}, r"keys: zzz\. .*defaults\.py"),
        ({"REQUESTS": {"max_waiter": 3}}, r"\['REQUESTS'\].*did you mean max_waiters"),
        ({"REQUESTS": {"status": 200}}, r"\['REQUESTS'\]: status must be .* from 400"),
        ({"REQUESTS": 3}, "REQUESTS must be a dict, not 3"),
        ({"MAX_HOLD": 0}, "MAX_HOLD must be above 0"),
    ],
)
def test_invalid_setting_is_reported_with_a_suggestion(given, message: str) -> None:
    with override_settings(REDIS_SYNC=given), pytest.raises(ImproperlyConfigured, match=message):
        conf.current()


@pytest.mark.parametrize("option", SETTINGS)
def test_settings_reject_an_unsuitable_value_of_each_key(option: str) -> None:
    given, message = {option.upper(): object()}, rf"\b{option.upper()}\b"
    with override_settings(REDIS_SYNC=given), pytest.raises(ImproperlyConfigured, match=message):
        conf.current()


@pytest.mark.parametrize("option", REQUESTS)
def test_requests_rejects_an_unsuitable_value_of_each_option(option: str, set_requests) -> None:
    set_requests(**{option: object()})
    with pytest.raises(ImproperlyConfigured, match=rf"\b{option}\b"):
        conf.current()


#: For each option with bounds, the nearest value out of bounds.
OUT_OF_BOUNDS = {
    **dict.fromkeys(("timeout", "max_hold", "limit"), 0),
    **dict.fromkeys(("min_hold", "blocking_timeout"), -0.001),
    **dict.fromkeys(("max_waiters", "trusted_proxies"), -1),
    **dict.fromkeys(("max_waiting_threads", "max_waiting_tasks"), -1),
    "status": 399,
    "ipv6_prefix": 129,
    "on_outage": "shut",
    "on_full": "wait",
}


@pytest.mark.parametrize(
    ("table", "option"),
    [
        pytest.param(table, option, id=f"{name}-{option}")
        for name, table in TABLES.items()
        for option in table
        if option in OUT_OF_BOUNDS
    ],
)
def test_option_rejects_a_value_out_of_bounds_in_each_table(table, option: str) -> None:
    with pytest.raises(ValueError, match=rf"\b{option}\b"):
        table[option].checked(OUT_OF_BOUNDS[option])


@pytest.mark.parametrize("option", ENTRY)
def test_policy_rejects_an_unsuitable_value_of_each_option(option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"\b{option}\b"):
        parse("x", {"limit": 1, option: object()})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (2, r"REDIS_SYNC\['SEMAPHORES'\]\['x'\] must be a dict such as \{'limit': 2\}, not 2"),
        ({"limt": 3}, r"REDIS_SYNC\['SEMAPHORES'\]\['x'\].* limt \(did you mean limit\?\)"),
    ],
)
def test_invalid_entry_is_a_configuration_error_for_code_and_policies(
    entry, message, settings
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"x": entry}}
    for take in (Semaphore("x", 1).acquire, lambda: parse("x", {"limit": 1})):
        with pytest.raises(ImproperlyConfigured, match=message):
            take()


def test_misspelled_option_of_a_decorator_is_reported_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"limitt \(did you mean limit\?\)"):
        semaphore_required("x", limitt=3)


# A new option

LINE = """class RequestOptions(Shared, total=False):
    patience: Annotated[int, values.count, Option(4, "How patient the client is.")]
"""
KEY = """class Settings:
    \"\"\"The keys of REDIS_SYNC, in lower case.\"\"\"

    shade: Annotated[int, values.count, Option(2, "How dark it is.")]
"""
SCRIPT = """
from django.conf import settings
settings.configure(REDIS_SYNC={"REQUESTS": {"patience": 5}, "SHADE": 3}, CACHES={"default": {}})
from django_redis_sync import SemaphoreRequiredMixin, conf, semaphore_required
from django_redis_sync.limits.policy import parse
from devtools import settings_page

assert SemaphoreRequiredMixin().get_semaphore_patience().__repr__() == "NOT_GIVEN"
semaphore_required("x", limit=1, patience=3)
assert [3, 5] == [parse("x", {"limit": 1, **o}).patience for o in ({"patience": 3}, {})]
for wrong in (True, "3", -1):
    try:
        semaphore_required("x", limit=1, patience=wrong)
    except (TypeError, ValueError):
        continue
    raise AssertionError(wrong)
assert 3 == conf.current().shade
assert "| `SHADE` | int | `2` | How dark it is. |" in settings_page.page()
assert "| `patience` | yes | int | `4` | How patient the client is. |" in settings_page.page()
"""


def test_new_option_and_new_key_need_one_line_each(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name)
    shutil.copytree(PACKAGE.parent / "devtools", tmp_path / "devtools")
    table = tmp_path / PACKAGE.name / "defaults.py"
    source = table.read_text(encoding="utf-8")
    for head, line in ((LINE.splitlines()[0], LINE), (KEY.rpartition("\n\n")[0], KEY)):
        assert 1 == source.count(head)
        source = source.replace(head, line.rstrip("\n"))
    table.write_text(source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr)


def test_settings_page_has_each_option_once() -> None:
    page = settings_page.page()
    for name in map(str.upper, SETTINGS):
        assert 1 == page.count(f"| `{name}` |")
    for name in ENTRY.keys() | SEMAPHORE.keys():
        assert (name in ENTRY) + (name in SEMAPHORE) == page.count(f"| `{name}` |")


# Times that are not settings

#: The expected times in seconds, roughly, by module and name.
TIMES = {
    "engine.renewal": {"POLL_INTERVAL": 60},
    "engine.loops": {"TICK": 0.05, "LATE": 0.01, "LAST_LOOK": 0.002, "MAX_LATE": 10},
    "engine.overrides": {"EVERY": 1, "STALE": 1, "IDLE": 5},
    "engine.names": {"NOTED_EVERY": 60, "NOTED_AFTER": 0.3},
    "engine.pools": {"FRESH": 1, "_IDLE_FOR": 60, "_AT_ONCE": 0.01, "_SHORTEST": 0.1},
    "engine.server": {"_POLL": 0.05},
    "engine.statistics": {"EVERY": 2, "AGAIN": 10, "LIFE": 30},
    "engine.housekeeping": {"GIVE_UP": 120},
    "engine.threads": {
        "CALLBACKS_IDLE": 5,
        "IDLE_TIMEOUT": 60,
        "_STARTING": 0.05,
        "_LOG_INTERVAL": 1,
    },
    "engine.wire": {"ATTEMPT": 5, "ROUND": 1, "RETRY": 1},
    "limits.breaker": {"PROBE_INTERVAL": 1, "PROBE_TIMEOUT": 0.5, "REMINDER_INTERVAL": 300},
    "limits.response": {"LEAD": 0.5},
    "limits.rejection": {"MIN_SECONDS": 1, "MAX_SECONDS": 120, "DEFAULT_SECONDS": 2},
    "limits.semaphore": {"ATTEMPT": 0.5, "CountedKeys.HOUR": 3600},
    "locks.callers": {"COLLECT_INTERVAL": 5},
    "locks.handle": {"_MIN_HOLD_LEFT": 0.001},
    "locks.lease_state": {"_CLOSE": 0.005},
    "protocol.plans": {"RIDE_OUT": 30, "UNDO_BUDGET": 1, "TICK": 0.001, "SHORTEST_WAIT": 0.01},
}


@pytest.mark.parametrize("module", TIMES)
def test_internal_times_have_the_expected_magnitude(module: str) -> None:
    """A mistake in the unit, such as milliseconds for seconds, fails this test."""
    inside = import_module(f"django_redis_sync.{module}")
    for name, seconds in TIMES[module].items():
        assert seconds / 4 <= attrgetter(name)(inside) <= seconds * 4, name
