from django.core.asgi import get_asgi_application

application = get_asgi_application()

from tests.request_site import patience  # noqa: E402, F401 - changes a time limit
