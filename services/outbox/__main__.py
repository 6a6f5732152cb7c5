"""Run outbox: ``python -m services.outbox --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from common.extras import needed
from services.outbox.settings import Settings

with needed("outbox", "outbox"):
    from services.outbox.service import Site

site = Site()
main("outbox", Settings, site.run, site.lifespan)
