"""Run gateway: ``python -m services.gateway --props FILE``."""

from common import main
from services.gateway.service import Gateway
from services.gateway.settings import Settings

gateway = Gateway()
main(Settings, gateway.run, gateway.lifespan)
