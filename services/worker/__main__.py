"""Run worker: ``python -m services.worker --props FILE``."""

from common import main
from services.worker.processes import supervised
from services.worker.service import Work
from services.worker.settings import Settings

if not supervised():
    work = Work()
    main(Settings, work.run, work.lifespan)
