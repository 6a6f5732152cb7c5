"""Import this first: an order by signal that comes while the rest is imported waits until it can be obeyed.

Without that it would be lost on the first process of a container, which the kernel spares signals that nothing handles,
and anywhere else it would end the process with another status than 0.
"""

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
