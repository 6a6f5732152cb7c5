"""Run router: ``python -m router --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from router.service import run
from router.settings import Settings

main("router", Settings, run)
