"""Each link of a page leads to a file of this repository that exists, and to a heading of it.

A link may be relative, or an address of the project that setup.cfg names. No connection is opened.
PyPI shows the README by itself, so the README has no relative links.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / "README.md", ROOT / "README.zh-Hans.md"]
FOLDERS = (".", "docs", "benchmarks", "tests/faults")
PAGES = {
    str(page.relative_to(ROOT)): page for folder in FOLDERS for page in (ROOT / folder).glob("*.md")
}
METADATA = configparser.ConfigParser()
METADATA.read(ROOT / "setup.cfg", encoding="utf-8")
NAMED = dict(
    line.split(" = ") for line in METADATA["metadata"]["project_urls"].strip().splitlines()
)
SITE, FORGE = NAMED["Documentation"], METADATA["metadata"]["url"]
#: Pages of the forge that are not files of the repository.
OF_FORGE = {"", "/issues"}
CODE = re.compile(r"^```.*?^```$|^<!--.*?-->$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\]\(\s*([^)\s]+)\s*\)")


class Target(NamedTuple):
    path: Path
    heading: str


def links(page: Path) -> set[str]:
    text = CODE.sub(lambda code: "" if "\n" in code[0] else "code", page.read_text("utf-8"))
    return set(INLINE.findall(text))


def headings(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub and the documentation's site do."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in words}


def target(page: Path, link: str) -> Target | None:
    """Return what the link leads to, or None if it leads to a site of others."""
    address = urlsplit(link)
    plain = link.partition("#")[0]
    if not address.scheme:
        return Target((page.parent / plain).resolve() if plain else page, address.fragment)
    if plain.startswith(SITE):
        path = re.sub(r"\.html$", ".md", plain.removeprefix(SITE)) or "index.md"
        return Target(ROOT / "docs" / path.replace("_images/", "images/"), address.fragment)
    if plain == FORGE or plain.startswith(f"{FORGE}/"):
        if plain.removeprefix(FORGE) in OF_FORGE:
            return None
        return Target(ROOT / plain.removeprefix(f"{FORGE}/blob/main/"), address.fragment)
    mine = (urlsplit(SITE).netloc, METADATA["metadata"]["name"])
    assert not any(word in link for word in mine), f"{link}: not below an address of setup.cfg"
    return None


def broken(page: Path, found: set[str]) -> list[str]:
    wrong = []
    for link in sorted(found):
        to = target(page, link)
        if to is None:
            continue
        if not to.path.exists():
            wrong.append(f"{link}: no {to.path}")
        elif to.heading and to.path.suffix == ".md" and to.heading not in headings(to.path):
            wrong.append(f"{link}: no such heading")
    return wrong


@pytest.mark.parametrize("name", sorted(PAGES))
def test_each_link_of_a_page_leads_to_a_file_and_a_heading(name: str) -> None:
    assert [] == broken(PAGES[name], links(PAGES[name]))


def test_addresses_in_the_metadata_and_the_issue_form_lead_to_files() -> None:
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text(encoding="utf-8")
    assert [] == broken(ROOT / "setup.cfg", {*NAMED.values(), *re.findall(r"url: (\S+)", form)})


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_readme_has_only_absolute_links_and_pictures_that_the_site_shows(page: Path) -> None:
    found = links(page)
    assert len(found) > 15
    assert [] == [link for link in found if not link.startswith("https://")]
    shown = "".join(path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md"))
    pictures = re.findall(rf"{re.escape(SITE)}_images/([\w.-]+)", page.read_text("utf-8"))
    assert pictures and [] == [name for name in pictures if f"](images/{name})" not in shown]


@pytest.mark.parametrize(
    "link",
    [
        "missing.md",
        "#missing",
        f"{SITE}missing.html",
        f"{SITE}index.html#missing",
        f"{FORGE}/blob/main/missing.md",
    ],
)
def test_link_to_a_missing_file_or_heading_is_found(link: str) -> None:
    assert 1 == len(broken(ROOT / "README.md", {link}))


# Versions


def span(kind: str) -> tuple[str, str]:
    """Return the oldest and the newest version of the classifiers that begin with `kind`."""
    classifiers = METADATA["metadata"]["classifiers"]
    found = re.findall(rf"^{re.escape(kind)} :: (\d+\.\d+)$", classifiers, re.MULTILINE)
    versions = sorted(found, key=lambda version: [*map(int, version.split("."))])
    return versions[0], versions[-1]


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_readme_names_the_versions_of_the_metadata(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, kind in (
        ("Python", "Programming Language :: Python"),
        ("Django", "Framework :: Django"),
    ):
        oldest, newest = span(kind)
        assert f"badge/{name.lower()}-{oldest}%20to%20{newest}-" in text
        (row,) = re.findall(rf"^\| {name} \| (.+) \|$", text, re.MULTILINE)
        assert (oldest, newest) == (re.findall(r"[\d.]+", row)[0], re.findall(r"[\d.]+", row)[-1])
