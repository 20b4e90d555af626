"""The values that each kind of option accepts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_redis_sync import values

NAN = math.nan


@pytest.mark.parametrize(
    ("check", "valid", "invalid"),
    [
        (values.positive, [(1, 1.0), (0.001, 0.001)], [0, -1, 1e9, math.inf, NAN, True, "1", None]),
        (values.not_negative, [(0, 0.0), (2, 2.0), (math.inf, math.inf)], [-1, NAN, False, "0"]),
        (values.lease, [(5, 5.0), (math.inf, math.inf)], [0, -1, True, "5"]),
        (values.hours, [(0, 0.0), (6, 6.0)], [-1, 1e6, True, "6"]),
        (values.ending, [(None, 0.0), (0, 0.0), (2, 2.0)], [math.inf, -1]),
        (values.whole, [(1, 1), (2**31 - 1, 2**31 - 1)], [0, -1, 2**31, True, 1.0, "1"]),
        (values.count, [(0, 0), (7, 7)], [-1, False, 0.0, "0"]),
        (values.prefix, [(1, 1), (128, 128)], [0, 129, True]),
        (values.limit, [(1, 1), (len, len)], [0, None, "3"]),
        (values.status, [(400, 400), (599, 599)], [399, 600, True, "503"]),
        (values.flag, [(True, True), (False, False)], [0, 1, None, "yes"]),
        (values.text, [("", ""), ("a", "a")], [None, 1, b"a"]),
        (values.alias, [("default", "default")], [None, ["a", "b"]]),
        (values.mapping, [({}, {})], [[], None, "x"]),
        (values.one_of("a", "b"), [("a", "a")], ["c", None, "A"]),
        (values.key, [("user", "user"), ("ip", "ip"), (len, len), ("a.b", "a.b")], ["host", 1]),
        (values.function, [(len, len), ("a.b", "a.b")], ["ab", None, 1]),
        (
            values.methods,
            [
                (["get"], {"GET", "HEAD"}),
                (("POST",), {"POST"}),
                (["GET", "put"], {"GET", "HEAD", "PUT"}),
                (["HEAD"], {"HEAD"}),
            ],
            ["GET", [], [1], ["GE T"], None],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_check_returns_valid_values_and_raises_for_invalid_ones(
    check: Any, valid: Any, invalid: Any
) -> None:
    for given, expected in valid:
        assert expected == check("it", given)
        assert type(expected) is not float or type(check("it", given)) is float
    for given in invalid:
        with pytest.raises((TypeError, ValueError), match="it"):
            check("it", given)


def test_unknown_names_are_listed_with_suggestions() -> None:
    assert "" == values.unknown(["limit"], ["limit", "key"])
    assert "limt (did you mean limit?)" == values.unknown(["limt"], ["limit", "key"])
    assert "qqq" == values.unknown(["qqq", "key"], ["limit", "key"])
    places = {"status": "an entry of ENDPOINTS"}
    found = values.unknown(["status"], ["limit"], places)
    assert "status (it belongs into an entry of ENDPOINTS)" == found
