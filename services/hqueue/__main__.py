"""Run hqueue: ``python -m services.hqueue --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from common.extras import needed

with needed("web", "hqueue"):
    from services.hqueue.service import Queues
    from services.hqueue.settings import Settings

queues = Queues()
main("hqueue", Settings, queues.run, queues.lifespan)
