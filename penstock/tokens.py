"""Bearer tokens of a namespace: the public path of ``penstock.core.tokens``."""

from penstock.core.tokens import *  # noqa: F403
