"""Free ports: the public path of ``penstock.base.ports``."""

from penstock.base.ports import *  # noqa: F403
