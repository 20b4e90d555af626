"""Count phrases that are hard to read, and fail if the text has more of them than before.

`python -m devtools.words` counts the phrases of each kind in three trees: the documentation, the
package, and the test names. `devtools/words.json` has the earlier counts. The check fails if, for a
kind, both the number of phrases and the rate per 1,000 words are higher. A higher rate alone is
allowed, because the deletion of good text raises the rate. `--write` stores lower counts.
`--show TREE` lists the phrases of a tree, each with its file and line.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORED = Path(__file__).with_suffix(".json")

#: Kinds of phrases: reason why such a phrase is hard to read -> regular expression.
PHRASES = {
    "a person instead of a thing": "who|whom|whoever|whose|nobody|somebody|anybody|everybody",
    "a message without a sender": "told|tells|said|heard|is said|says so",
    "an old construction": (
        "(?:is|are|was) no|so many|so long|at the (?:most|least)|of which|stands?|lies|"
        "is over|are over|come[s]? free|whatever|anew|as well as may"
    ),
    "an author in the text": "we|us|our|ours|simply|just|easily",
    "a private word": (
        "couriers?|clerks?|keepers?|errands?|seats?|rooms?|heeds?|heeded|pokes?|poked|spills?|"
        "spilled|bury|buried|ghosts?|glances?|reckons?|beliefs?|believes?|believed|nursery|"
        "tally|tallied|lanes?|deeds?|turned away|thin out|straight way|at hand|twins?|plants?|"
        "planted|loose ends?|last words|hurry|outlasting|patience"
    ),
}
_FIND = {why: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for why, words in PHRASES.items()}

Text = tuple[Path, int, str]


def _files(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for line in listed.stdout.split("\n") if line and (path := ROOT / line).exists()]


def _pages() -> Iterator[Text]:
    """Yield the prose of the documentation, without code."""
    for path in _files("*.md"):
        if path.name == "README.zh-Hans.md":
            continue
        code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                code = not code
            elif not code:
                yield path, number, re.sub(r"`[^`]*`|\]\([^)]*\)", " ", line)


def _sources(*patterns: str) -> Iterator[Text]:
    """Yield all comments, and all strings with a space. Most are docstrings or messages."""
    for path in _files(*patterns):
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".lua":
            for number, line in enumerate(source.splitlines(), 1):
                if "--" in line:
                    yield path, number, line.partition("--")[2]
            continue
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            is_text = token.type == tokenize.STRING and " " in token.string
            if token.type == tokenize.COMMENT or is_text:
                yield path, token.start[0], re.sub(r"`[^`]*`", " ", token.string)


def _test_names() -> Iterator[Text]:
    for path in _files("tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            defined = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if defined and node.name.startswith("test_"):
                yield path, node.lineno, node.name.replace("_", " ")


TREES = {
    "documentation": _pages,
    "package": lambda: _sources("django_redis_sync/*.py", "django_redis_sync/*.lua"),
    "test names": _test_names,
}


def places(tree: str) -> Iterator[tuple[str, Path, int, str]]:
    """Yield a tuple for each phrase in a tree: the kind of phrase, which is a key of `PHRASES`, the
    path, the line number, and the phrase."""
    for path, line, text in TREES[tree]():
        for why, pattern in _FIND.items():
            for found in pattern.finditer(text):
                yield why, path, line, found.group()


def counts(tree: str) -> dict[str, dict[str, float]]:
    """For each kind of phrase, return a dict with the number of such phrases in a tree ("count"),
    and their number per 1,000 words ("rate")."""
    words = sum(len(text.split()) for _, _, text in TREES[tree]()) or 1
    found = Counter(why for why, *_ in places(tree))
    return {
        why: {"count": found[why], "rate": round(1000 * found[why] / words, 2)} for why in PHRASES
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store counts that have fallen")
    parser.add_argument("--show", choices=TREES, help="list the phrases in this tree")
    options = parser.parse_args(arguments)
    if options.show:
        for why, path, line, phrase in places(options.show):
            print(f"{path.relative_to(ROOT)}:{line}: {phrase} ({why})")
        return 0
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    risen = False
    for tree in TREES:
        before = stored.setdefault(tree, {})
        for why, now in counts(tree).items():
            was = before.setdefault(why, now)
            if all(now[number] > was[number] for number in now):
                risen = True
                print(f"{tree}: {why}: {now}, at most {was} is allowed", file=sys.stderr)
            before[why] = {number: min(now[number], was[number]) for number in now}
    if options.write:
        STORED.write_text(json.dumps(stored, indent=2) + "\n")
    if risen:
        print('To list the phrases: python -m devtools.words --show "TREE"', file=sys.stderr)
    return risen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
