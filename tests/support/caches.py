"""The cache of the fixture `second`."""

from typing import Any

OTHER: dict[str, Any] = {"using": "other"}
