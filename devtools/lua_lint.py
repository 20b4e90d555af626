"""Check the names and the layout of the Lua files of `django_redis_sync.protocol`.

`python -m devtools.lua_lint` prints a line for each mistake, and exits with 1 if there are any. An
undefined name is a mistake, because Lua would silently use nil. Each file is checked alone: a
function may use only its local names, constants, KEYS, and other functions. The layout must follow
the rules in `protocol/scripts.py`, which reads the files line by line, without parsing Lua.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from luaparser import ast
from luaparser.astnodes import Name, Node

from django_redis_sync.protocol import scripts

#: Global names of Lua that scripts may use -> the allowed members, if the global is a table.
GLOBALS: dict[str, set[str]] = {
    "KEYS": set(),
    "ARGV": set(),
    "cjson": {"decode"},
    "error": set(),
    "ipairs": set(),
    "next": set(),
    "pairs": set(),
    "struct": {"pack", "unpack"},
    "table": {"concat", "sort"},
    "tonumber": set(),
    "type": set(),
    "unpack": set(),
    "redis": {"call", "pcall"},
    "string": {"find", "format", "gmatch", "gsub", "match", "sub"},
    "math": {"abs", "ceil", "floor", "huge", "max", "min"},
}


def main() -> int:
    files = sorted(scripts.LUA.rglob("*.lua"))
    found = [
        f"{path.relative_to(scripts.LUA)}: {mistake}"
        for path in files
        for mistake in mistakes(path, path.read_text(encoding="utf-8"))
    ]
    print("\n".join(found) or f"{len(files)} Lua files: all names are known")
    return 1 if found else 0


def mistakes(path: Path, text: str) -> list[str]:
    """Return the mistakes in a Lua file. `text`: the contents of the file."""
    try:
        body = ast.parse(text).body.body
    except ast.SyntaxException as error:
        return [str(error)]
    if layout := list(_layout(text)):
        return layout
    if path.parent.name != "functions":
        return _Reader().read_block(body).mistakes
    if [type(node).__name__ for node in body] != ["LocalFunction"] or body[0].name.id != path.stem:
        return [f"the file must have only the local function {path.stem}"]
    unused = [] if path.stem in _called() else ["nothing calls it"]
    return unused + _Reader().read_block(body).mistakes


_BLOCK = re.compile(r"(?:if|elseif) .* then|for .* do|else|local function .*\)")
_ON_ONE_LINE = re.compile(r"if .* then .* end(?: *--.*)?$")


def _layout(text: str) -> Iterator[str]:
    """Yield a mistake for each line that `protocol/scripts.py` would misread. That module does not
    parse Lua. It relies on line breaks and indentation."""
    blocks = list[str]()  # the first word of each open block
    within = False  # True if the next line may continue a statement
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"'[^']*'", "''", line)
        _, inserts, inserted = code.partition(scripts.INSERT)
        code = code.partition("--")[0].rstrip()
        where = f"line {number}"
        for name in inserted.split(", ") if inserts else ():
            if name not in scripts.functions():
                yield f"{where} inserts {name}, which is not a function"
        if not code:
            continue
        word, depth = code.split()[0], len(code) - len(code.lstrip())
        if word in ("end", "else", "elseif") and blocks:
            blocks.pop()
        if within and depth > 2 * len(blocks):
            continue
        if depth != 2 * len(blocks):
            yield f"{where} is indented by {depth}, not by {2 * len(blocks)}"
        code, within = code.strip(), True
        words = re.findall(r"\w+|;", code)
        one_line = bool(_ON_ONE_LINE.fullmatch(code))
        if _BLOCK.fullmatch(code):
            blocks.append(word)
            within = False
        elif word == "end":
            within = False
        elif word in ("else", "elseif", "for") or (word == "if" and not one_line):
            yield f"{where} must end with then, do, or else"
        elif (
            one_line and {*scripts.called(code.partition(" then ")[2])} & scripts.functions().keys()
        ):
            yield f"{where} calls a function in a one-line if: move the call to the next line"
        if ";" in words or words.count("end") > 1 or {"while", "repeat"} & {*words}:
            yield f"{where} has more than one statement, or a loop other than for"
        if "function" in words and not code.startswith("local function "):
            yield f"{where} has a function that does not start with 'local function'"


_SCRIPTS = (*scripts.NAME_SCRIPTS, *scripts.OTHER_SCRIPTS)


@cache
def _called() -> set[str]:
    texts = [scripts.with_functions(scripts.read(verb)) for verb in _SCRIPTS]
    return {name for text in texts for name in re.findall(r"local function (\w+)", text)}


@cache
def _capitals() -> set[str]:
    """Return the upper-case words that mean numbers, keys, or patterns in the Lua files."""
    keys = {key.upper() for verb in _SCRIPTS for key in scripts.script_keys(verb)}
    return {*keys, *scripts.CONSTANTS, *scripts.PATTERNS}


def _takes(function: str, given: int) -> str:
    """Return "" if a function can be called with `given` arguments. Otherwise return the number of
    its parameters, as text."""
    arguments = scripts.functions()[function][0].partition("(")[2]
    asked = len(re.findall(r"\w+", arguments))
    return "" if given == asked or (given > asked and "..." in arguments) else str(asked)


class _Reader:
    """Finds undefined, unused, and misused names in a Lua file. `scopes`: the open scopes of Lua,
    the innermost last. Each scope is a dict from a local name to True if the code reads it."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        self.scopes: list[dict[str, bool]] = []
        self.capitals = _capitals()

    def read_block(self, nodes: Iterable[Node], names: Iterable[Name] = ()) -> _Reader:
        self.scopes.append({})
        self.define(names)
        for node in nodes:
            self.read(node)
        unread = [name for name, read in self.scopes.pop().items() if not (read or name == "_")]
        self.mistakes += [f"{name} is never read" for name in unread]
        return self

    def define(self, names: Iterable[Name]) -> None:
        for name in names:
            if not isinstance(name, Name):  # ...
                continue
            if name.id in scripts.functions() or name.id in GLOBALS:
                self.mistakes.append(f"{name.id} is already the name of a function or a global")
            self.scopes[-1][name.id] = False

    def read(self, node: Any) -> None:
        own = getattr(self, f"read_{type(node).__name__.lower()}", None)
        if own is not None:
            own(node)
        elif isinstance(node, Node):
            for key, value in vars(node).items():
                if not key.startswith("_"):
                    self.read(value)
        elif isinstance(node, list):
            for item in node:
                self.read(item)

    # Names

    def read_name(self, node: Name) -> None:
        if node.id == "FIELDS":
            for field in scripts.fields():
                self.use(field)
        elif node.id in scripts.functions():
            self.mistakes.append(f"{node.id} is a function: it can only be called")
        else:
            self.use(node.id)

    def use(self, name: str) -> None:
        for scope in reversed(self.scopes):
            if name in scope:
                scope[name] = True
                return
        if name not in self.capitals | GLOBALS.keys():
            self.mistakes.append(f"{name} is not defined")

    def read_index(self, node: Any) -> None:
        self.read(node.value)
        if node.notation.name != "DOT":
            self.read(node.idx)
            return
        table, field = getattr(node.value, "id", "?"), node.idx.id
        known = (
            set(scripts.fields(table)) if table in ("name", "log") else GLOBALS.get(table, set())
        )
        if field not in known:
            self.mistakes.append(f"{table} has no {field}")

    def read_string(self, node: Any) -> None:
        for word in re.findall(r"[A-Z]+", str(node.s)):
            if word in self.capitals:
                self.mistakes.append(
                    f"{word} is a constant: its value would replace this word also in a string"
                )

    # Statements with a scope

    def read_assign(self, node: Any) -> None:
        for target in node.targets:
            if isinstance(target, Name):
                local = any(target.id in scope for scope in self.scopes)
                if not local and target.id not in self.capitals:  # neither local nor a key
                    self.mistakes.append(f"{target.id} is not defined")
            else:
                self.read(target)
        self.read(node.values)

    def read_localassign(self, node: Any) -> None:
        self.read(node.values)
        self.define(node.targets)

    def read_localfunction(self, node: Any) -> None:
        self.read_block(node.body.body, node.args)

    def read_block_of(self, node: Any, names: Iterable[Name]) -> None:
        self.read_block(node.body.body, names)

    def read_fornum(self, node: Any) -> None:
        self.read([node.start, node.stop])
        self.read_block_of(node, [node.target])

    def read_forin(self, node: Any) -> None:
        self.read(node.iter)
        self.read_block_of(node, node.targets)

    def read_if(self, node: Any) -> None:
        self.read(node.test)
        self.read_block_of(node, ())
        orelse = node.orelse
        if type(orelse).__name__ == "ElseIf":
            self.read_if(orelse)
        elif orelse is not None:
            self.read_block(orelse.body)

    def read_call(self, node: Any) -> None:
        name = getattr(node.func, "id", "")
        self.read(node.args if name in scripts.functions() else [node.func, node.args])
        given = len(node.args)
        if name in scripts.functions() and (asked := _takes(name, given)):
            self.mistakes.append(f"{name} has {asked} parameters, but is called with {given}")


if __name__ == "__main__":
    sys.exit(main())
