"""The example site for gunicorn. Its handler serves style sheets even if DEBUG is off."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

application = StaticFilesHandler(get_wsgi_application())
