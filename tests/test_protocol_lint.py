"""`make lint` finds wrong names in Lua scripts, and scripts are composed of functions."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from django_redis_sync.protocol import scripts

lua_lint = pytest.importorskip("devtools.lua_lint", reason="luaparser is not installed")

FILES = sorted(scripts.LUA.rglob("*.lua"))
# fmt: off
WORDS = {
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "return", "then", "true",
}
# fmt: on
VERB = scripts.LUA / "verb.lua"


def names(text: str) -> list[re.Match[str]]:
    """Return every name in the code of a file, outside of comments and strings."""
    code = re.sub(r"--.*|'[^']*'", lambda found: " " * len(found[0]), text)
    return [found for found in re.finditer(r"[A-Za-z_]\w*", code) if found[0] not in WORDS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lint_accepts_every_lua_file(path: Path) -> None:
    assert [] == lua_lint.mistakes(path, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lint_finds_a_name_with_one_wrong_letter(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = names(text)
    for name in random.Random(0).sample(found, min(6, len(found))):
        misspelt = text[: name.end() - 1] + "Q" + text[name.end() :]
        line = misspelt[: name.end()].count("\n") + 1
        assert lua_lint.mistakes(path, misspelt), f"line {line}: {name[0]}"


@pytest.mark.parametrize(
    ("code", "mistake"),
    {
        "local name = open(ARGV[1])": "open takes 3 arguments, and is given 1",
        "local count = 1\nreturn {count}": "count is already a function or a table",
        "local a = 1": "a is never read",
        "a = 1": "nothing here is called a",
        "for a = 1, 2 do\n  redis.call('TIME')\nend": "a is never read",
        "local name = open('', '0')\nreturn name.crad": "name has no crad",
        "return redis.cal('TIME')": "redis has no cal",
        "return redis.call('GRACE')": "GRACE is a constant",
        "if a then": "error",
        "return {whole}": "whole is a function: it can only be called",
        "if KEYS then\n  redis.call('TIME')\nelse redis.call('PING') end": "line 3 has to end",
        "for _, a in ipairs(KEYS) do redis.call(a) end": "line 1 has to end",
        "if KEYS then redis.call('TIME')\nend": "line 1 has to end",
        "if KEYS then\n    redis.call('TIME')\nend": "line 2 is indented by 4, not by 2",
        "while KEYS do\n  redis.call('TIME')\nend": "another loop than for",
        "if KEYS then if ARGV then redis.call('TIME') end end": "more than one statement",
        "if KEYS then weight(1) end": "line 1 creates a function for a call",
        "-- make conut": "line 1 makes conut, which is not a function",
    }.items(),
    ids=lambda text: text if "\n" not in text else "",
)
def test_lint_describes_the_mistake(code: str, mistake: str) -> None:
    assert any(mistake.lower() in found.lower() for found in lua_lint.mistakes(VERB, code))


def test_lint_finds_a_function_that_uses_a_variable_of_the_script() -> None:
    path = scripts.LUA / "functions" / "weight.lua"
    captures = "local function weight(permits)\n  return permits + token\nend\n"

    assert ["nothing here is called token"] == lua_lint.mistakes(path, captures)


def test_lint_finds_a_function_that_no_script_calls() -> None:
    path = scripts.LUA / "functions" / "nobody_calls_me.lua"

    assert ["nothing calls it"] == lua_lint.mistakes(path, "local function nobody_calls_me() end\n")


# How a script is composed


def test_function_is_created_where_it_is_first_called() -> None:
    text = "local a = whole(1, 2)\nif a then\n  count(1, 2, 3)\nend\nput(a, 1, 2)\n"
    composed = scripts.with_functions(text)
    order = re.findall(r"^(?:local function (\w+)|(if|put))", composed, re.MULTILINE)

    assert ["whole", "if", "count", "put", "put"] == [
        a or b for a, b in order if (a or b) not in ("tidy", "fold_old")
    ]


def test_function_called_in_an_elseif_is_created_before_the_if() -> None:
    composed = scripts.with_functions("if a then\n  a()\nelseif weight(1) then\n  a()\nend\n")

    assert composed.startswith("local function weight(")
    assert 1 == composed.count("local function weight(")


def test_function_called_in_every_turn_of_a_loop_is_created_before_it() -> None:
    composed = scripts.with_functions(
        "for i = 1, 2 do\n  weight(i)\n  if i then\n    whole(i)\n  end\nend\n"
    )
    order = re.findall(r"^\s*(?:local function (\w+)|(for|if))", composed, re.MULTILINE)

    assert ["weight", "for", "if", "whole"] == [a or b for a, b in order]


def test_make_comment_creates_a_function_for_the_rest_of_the_block() -> None:
    composed = scripts.with_functions(
        "-- make weight\nif a then\n  weight(1)\nelse\n  weight(2)\nend\n"
    )
    assert composed.startswith("local function weight(")
    assert 1 == composed.count("local function weight(")


def test_function_called_inside_a_long_statement_is_created_before_it() -> None:
    composed = scripts.with_functions("return {1,\n  weight(1),\n  weight(2)}\n")
    assert composed.endswith("end\nreturn {1,\n  weight(1),\n  weight(2)}\n")


def test_unknown_field_of_a_name_raises_key_error() -> None:
    with pytest.raises(KeyError, match="crad"):
        scripts.with_numbers("acquire", "name.crad", {})
