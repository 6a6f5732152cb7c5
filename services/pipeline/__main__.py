"""Run pipeline: ``python -m services.pipeline --props FILE``."""

import common.signals  # noqa: F401
from common.extras import needed

with needed("spark", "pipeline"):
    from common.app import main
    from services.pipeline.service import Pipeline
    from services.pipeline.settings import Settings

pipeline = Pipeline()
main("pipeline", Settings, pipeline.run, pipeline.lifespan)
