"""The example site for uvicorn. Its handler serves style sheets even if DEBUG is off."""

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

application = ASGIStaticFilesHandler(get_asgi_application())
