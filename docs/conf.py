"""Build the documentation as a site: `make docs` writes it to build/docs. A warning is an error."""

from __future__ import annotations

import importlib.metadata
import os

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_redis_sync"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"}},
)
django.setup()

project = "django-redis-sync"
author = "django-redis-sync contributors"
release = importlib.metadata.version("django-redis-sync")
language = "en"
html_title = f"{project} {release}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
copybutton_prompt_text = "$ "
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "articles.md"]
nitpicky = True
# Types that are not part of the documented API.
nitpick_ignore_regex = [("py:.*", r".*")]
