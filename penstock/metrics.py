"""Read and write metrics: the public path of ``penstock.core.metrics``."""

from penstock.core.metrics import *  # noqa: F403
