"""Run pipeline: ``python -m services.pipeline --props FILE``."""

from common.extras import needed

with needed("spark", "pipeline"):
    from common import main
    from services.pipeline.service import Pipeline
    from services.pipeline.settings import Settings

pipeline = Pipeline()
main(Settings, pipeline.run, pipeline.lifespan)
