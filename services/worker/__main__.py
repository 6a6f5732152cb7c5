"""Run worker: ``python -m services.worker --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.worker.processes import supervised
from services.worker.service import Work
from services.worker.settings import Settings

if not supervised():
    work = Work()
    main("worker", Settings, work.run, work.lifespan)
