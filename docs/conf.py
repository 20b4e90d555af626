"""These pages as a site: `make docs` writes it to build/docs. What is wrong is an error."""

from __future__ import annotations

project = "django-redis-sync"
author = "django-redis-sync contributors"
html_title = project
html_theme = "furo"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True
