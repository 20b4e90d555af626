from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

from tests.request_site import patience  # noqa: E402, F401 - changes a time limit
