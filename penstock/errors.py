"""All errors that Penstock raises: the public path of ``penstock.base.errors``."""

from penstock.base.errors import *  # noqa: F403
