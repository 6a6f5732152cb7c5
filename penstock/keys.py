"""The names of keys: the public path of ``penstock.base.keys``."""

from penstock.base.keys import *  # noqa: F403
