"""Run sregister: ``python -m services.sregister --props FILE``. It ends with the status of its program."""

import sys

from common import main
from services.sregister.service import Registrar
from services.sregister.settings import Settings

registrar = Registrar()
try:
    main(Settings, registrar.run, registrar.lifespan)
except SystemExit as end:
    sys.exit(end.code or registrar.status)
