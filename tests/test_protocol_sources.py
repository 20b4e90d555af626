"""How scripts are composed of functions."""

from __future__ import annotations

import re

import pytest

from django_redis_sync.protocol import scripts


@pytest.mark.parametrize(
    ("text", "order"),
    {
        "before its first call": (
            "local a = whole(1)\nif a then\n  weight(1)\nend\nput(a)\n",
            "whole if weight put",
        ),
        "before the if of an elseif": (
            "if a then\n  a()\nelseif weight(1) then\n  a()\nend\nif a then\nend\n",
            "weight if if",
        ),
        "before a loop whose every turn calls it": (
            "for i = 1, 2 do\n  weight(i)\n  if i then\n    whole(i)\n  end\nend\n",
            "weight for if whole",
        ),
        "once, where it is made": (
            "-- make weight\nif a then\n  weight(1)\nend\nif a then\n  weight(2)\nend\n",
            "weight if if",
        ),
        "in each block that calls it": (
            "if a then\n  weight(1)\nend\nif a then\n  weight(2)\nend\n",
            "if weight if weight",
        ),
        "before a long statement": ("if a then\nend\nadd({1,\n  weight(1)})\n", "if weight"),
        "after the functions that it calls": ("weight(1)\nadd(wake_key(1))", "weight wake_key"),
    }.values(),
)
def test_function_is_inserted_before_the_statement_that_calls_it(text: str, order: str) -> None:
    composed = scripts.with_functions(text)
    found = re.findall(r"^\s*(?:local function (\w+)|(if|for)\b)", composed, re.MULTILINE)
    assert order.split(" ") == [created or word for created, word in found]
    assert composed.endswith(text.rstrip().splitlines()[-1] + "\n")


def test_unknown_field_of_a_name_raises_key_error() -> None:
    with pytest.raises(KeyError, match="crad"):
        scripts.with_numbers("acquire", "name.crad", {})
