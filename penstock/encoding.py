"""Text and bytes as keys and values hold them: the public path of ``penstock.base.encoding``."""

from penstock.base.encoding import *  # noqa: F403
