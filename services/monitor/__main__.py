"""Run monitor: ``python -m services.monitor --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.monitor.service import Monitor
from services.monitor.settings import Settings

monitor = Monitor()
main("monitor", Settings, monitor.run, monitor.lifespan)
