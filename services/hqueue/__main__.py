"""Run hqueue: ``python -m services.hqueue --props FILE``."""

from common import main
from common.extras import needed

with needed("web", "hqueue"):
    from services.hqueue.service import Queues
    from services.hqueue.settings import Settings

queues = Queues()
main(Settings, queues.run, queues.lifespan)
