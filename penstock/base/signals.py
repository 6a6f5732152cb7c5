"""Block SIGTERM, SIGINT and SIGHUP when imported; import this first, and unblock them once handlers are installed.

A signal during the other imports would be lost on the first process of a container (the kernel does not deliver it
signals without a handler), and would end any other process with a status other than 0.
"""

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
