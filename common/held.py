"""Import this first in a service: see ``penstock.held``."""

import penstock.held  # noqa: F401
