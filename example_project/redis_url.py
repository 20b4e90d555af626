"""Find the database of a Redis URL, and a second database on the same server."""

from urllib.parse import parse_qsl, urlencode, urlsplit


def database_of(url: str) -> int:
    """Return the database number of a Redis URL, from its query or its path."""
    parts = urlsplit(url)
    named = dict(parse_qsl(parts.query)).get("db")
    if named is None and parts.scheme != "unix":
        named = parts.path.strip("/")
    return int(named or 0)


def neighbour_database(url: str) -> str:
    """Return the URL of another database of the same server. Databases are paired: 0 and 1, 2 and
    3, and so on."""
    base, _, query = url.partition("?")
    pairs = [(key, value) for key, value in parse_qsl(query) if key != "db"]
    pairs.append(("db", str(database_of(url) ^ 1)))
    return f"{base}?{urlencode(pairs)}"
