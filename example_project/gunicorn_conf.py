"""How the demo runs gunicorn; bind and workers come from its command line."""

worker_class = "gthread"
threads = 8
worker_connections = 24  # so that one eager worker doesn't take every connection of a burst
graceful_timeout = 2
# Newer versions open a control socket in the home folder; older ones ignore this line.
control_socket_disable = True
