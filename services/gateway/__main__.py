"""Run gateway: ``python -m services.gateway --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.gateway.service import Gateway
from services.gateway.settings import Settings

gateway = Gateway()
main("gateway", Settings, gateway.run, gateway.lifespan)
