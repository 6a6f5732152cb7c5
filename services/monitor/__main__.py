"""Run monitor: ``python -m services.monitor --props FILE``."""

from common import main
from services.monitor.service import Monitor
from services.monitor.settings import Settings

monitor = Monitor()
main(Settings, monitor.run, monitor.lifespan)
