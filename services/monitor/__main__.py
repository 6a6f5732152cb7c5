"""Run monitor: ``python -m services.monitor --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.monitor.service import run, seen
from services.monitor.settings import Settings

main("monitor", Settings, run, seen)
