"""`make lint` finds wrong names in Lua files, and code that breaks the rules of their layout."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from django_redis_sync.protocol import scripts

lua_lint = pytest.importorskip("devtools.lua_lint", reason="luaparser is not installed")

tools = pytest.mark.tools  # `make lint` runs the program, too
FILES = sorted(scripts.LUA.rglob("*.lua"))
# fmt: off
WORDS = {
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "return", "then", "true",
}
# fmt: on


@tools
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lint_finds_a_misspelled_name_in_each_lua_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = re.sub(r"--.*|'[^']*'", lambda found: " " * len(found[0]), text)
    found = [name for name in re.finditer(r"[A-Za-z_]\w*", code) if name[0] not in WORDS]
    for name in random.Random(0).sample(found, min(2, len(found))):
        misspelt = text[: name.end() - 1] + "Q" + text[name.end() :]
        line = misspelt[: name.end()].count("\n") + 1
        assert lua_lint.mistakes(path, misspelt), f"line {line}: {name[0]}"


@tools
@pytest.mark.parametrize(
    ("code", "mistake"),
    {
        "local name = open(ARGV[1])": "open has 4 parameters, but is called with 1",
        "local count = 1\nreturn {count}": "count is already the name of a function",
        "local a = 1": "a is never read",
        "a = 1": "a is not defined",
        "for a = 1, 2 do\n  redis.call('TIME')\nend": "a is never read",
        "local name = open('', '0')\nreturn name.crad": "name has no crad",
        "return redis.cal('TIME')": "redis has no cal",
        "return redis.call('GRACE')": "GRACE is a constant",
        "if a then": "error",
        "return {whole}": "whole is a function: it can only be called",
        "if KEYS then\n  redis.call('TIME')\nelse redis.call('PING') end": "line 3 must end",
        "for _, a in ipairs(KEYS) do redis.call(a) end": "line 1 must end",
        "if KEYS then redis.call('TIME')\nend": "line 1 must end",
        "if KEYS then\n    redis.call('TIME')\nend": "line 2 is indented by 4, not by 2",
        "while KEYS do\n  redis.call('TIME')\nend": "a loop other than for",
        "if KEYS then if ARGV then redis.call('TIME') end end": "more than one statement",
        "if KEYS then weight(1) end": "line 1 calls a function in a one-line if",
        "local f = function() return 1 end\nreturn f()": "line 1 has a function",
        "-- the composer inserts here: conut": "line 1 inserts conut, which is not a function",
    }.items(),
    ids=lambda text: text if "\n" not in text else "",
)
def test_lint_describes_a_mistake_in_a_script_file(code: str, mistake: str) -> None:
    found = lua_lint.mistakes(scripts.LUA / "verb.lua", code)
    assert any(mistake.lower() in text.lower() for text in found), found


@tools
@pytest.mark.parametrize(
    ("name", "code", "mistake"),
    [
        ("weight", "local function weight(n)\n  return n + token\nend\n", "token is not defined"),
        ("unused", "local function unused() end\n", "nothing calls it"),
        ("weight", "local function other() end\n", "must have only the local function weight"),
    ],
)
def test_lint_describes_a_mistake_in_a_function_file(name: str, code: str, mistake: str) -> None:
    (found,) = lua_lint.mistakes(scripts.LUA / "functions" / f"{name}.lua", code)
    assert mistake in found


def test_lint_exits_with_code_0_when_all_lua_files_are_correct(capsys: Any) -> None:
    assert 0 == lua_lint.main()
    assert f"{len(FILES)} Lua files: all names are known\n" == capsys.readouterr().out
