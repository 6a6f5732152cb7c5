"""Run outbox: ``python -m services.outbox --props FILE``."""

from common import main
from common.extras import needed
from services.outbox.settings import Settings

with needed("outbox", "outbox"):
    from services.outbox.service import Site

site = Site()
main(Settings, site.run, site.lifespan)
