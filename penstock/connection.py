"""Connect to a server: the public path of ``penstock.core.connection``."""

from penstock.core.connection import *  # noqa: F403
