"""Write docs/works-with.md from the rows of the field suite: `python -m tests.field.page`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.field.row import HERE, Row, folders, rows_of, version_of

PAGE = HERE.parents[1] / "docs" / "works-with.md"

_PAGE = """# Works with

These packages and kinds of views are tested as the documentation of each package tells a project to
use it, with real packages, real servers, and PostgreSQL. The tests are in `tests/field`, and
`make field` runs them. `python -m tests.field.page` makes this page from their rows.

- **Server.** WSGI is the server of `runserver`, and ASGI is uvicorn. [Servers](servers.md) lists
  others.
- **Tickets.** 15 buyers ask at once for 8 tickets. The limit of the view is 1, and the COMMIT of
  each sale takes 50 ms. If a permit were released before the COMMIT, more than 8 tickets would be
  sold.

{sections}
"""


def page(versions: dict[str, str]) -> str:
    """Return the text of the page. `versions`: the version of each package."""
    return _PAGE.format(sections="\n\n".join(_section(one, versions) for one in folders()))


def _section(folder: str, versions: dict[str, str]) -> str:
    rows = rows_of(folder)
    with_versions = ", ".join(f"{name} {versions.get(name, '?')}" for name in packages_of(folder))
    head = "| View | User | Transaction | Server | What is tested |\n|---|---|---|---|---|"
    shown = dict.fromkeys(_line(folder, row) for row in rows.ROWS)
    return "\n".join([f"## {rows.TITLE}\n\nTested with {with_versions}.\n", head, *shown])


def _line(folder: str, row: Row) -> str:
    cells = (row.view, row.user, row.transaction, row.server, _tested(folder, row.proof))
    return f"| {' | '.join(cell or '–' for cell in cells)} |"


def _tested(folder: str, proof: str) -> str:
    """Return the docstring of a proof. Its module is not imported, because it needs settings."""
    for module in (HERE / folder / "urls.py", HERE / "proofs.py"):
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == proof:
                return " ".join((ast.get_docstring(node) or "").split())
    raise LookupError(f"{folder}: no proof {proof}")


def packages_of(folder: str) -> list[str]:
    """Return the packages whose versions the section of a project names."""
    return ["Django", *rows_of(folder).PACKAGES]


def versions_on(text: str) -> dict[str, str]:
    """Return the versions that a text of the page names."""
    shown = re.findall(r"^Tested with (.*)\.$", text, re.MULTILINE)
    return dict(word.split(" ") for line in shown for word in line.split(", "))  # type: ignore[misc]


def main(path: Path = PAGE) -> None:
    known = versions_on(path.read_text(encoding="utf-8")) if path.exists() else {}
    installed = {name: version_of(name) for one in folders() for name in packages_of(one)}
    found = {name: version for name, version in installed.items() if version is not None}
    path.write_text(page({**known, **found}), encoding="utf-8")


if __name__ == "__main__":
    main()
