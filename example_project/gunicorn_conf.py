"""gunicorn's configuration for the demo. The command line sets address and workers."""

worker_class = "gthread"
threads = 8
worker_connections = 24  # low, so that no worker takes all connections of a burst
graceful_timeout = 2
# Newer versions would open a control socket in the home folder. Older versions ignore this line.
control_socket_disable = True
