"""Writes docs/settings.md from defaults.py, so that the page can't drift."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
SOURCE = ROOT / "django_redis_sync" / "defaults.py"

_HEAD = """# Settings

One setting, `REDIS_SYNC`, a dict. Every key with its default; what is left out has it. Values are
read at each acquire, so `override_settings` works at once. An unknown key is an error.

This page is made from `django_redis_sync/defaults.py` by `python -m devtools.settings_page`.
"""
_TITLES = {"REQUESTS": "`REDIS_SYNC['REQUESTS']`: what request limits start from"}
_ENTRY = re.compile(r'^ {8}"(\w+)": (.+),$')
_WHY = re.compile(r"^ {8}# (.+)$")


def page() -> str:
    """The page as it should be."""
    tables: dict[str, list[str]] = {}
    table, why = "", []
    for line in SOURCE.read_text(encoding="utf-8").splitlines():
        if start := re.match(r"^(\w+)(: .+)? = MappingProxyType\($", line):
            table = start[1]
        elif comment := _WHY.match(line):
            why.append(comment[1])
        elif entry := _ENTRY.match(line):
            default = re.sub(r"MappingProxyType\((\{\})\)", r"\1", entry[2])
            default = "see below" if default == "REQUESTS" else f"`{default}`"
            tables.setdefault(table, []).append(f"| `{entry[1]}` | {default} | {' '.join(why)} |")
            why = []
    parts = [_HEAD]
    for name in ("DEFAULTS", "REQUESTS"):
        title = _TITLES.get(name, "`REDIS_SYNC`")
        rows = "\n".join(tables[name])
        parts.append(f"## {title}\n\n| key | default | what it is for |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} written\n")
