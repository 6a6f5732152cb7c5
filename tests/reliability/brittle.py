"""mdispatch that crashes on the request ``poison``, as by a bug in a library."""

import os
from collections.abc import Callable

from common.app import main
from services.mdispatch import dispatch
from services.mdispatch.request import Parsed, parse_request
from services.mdispatch.service import run
from services.mdispatch.settings import Settings


def brittle(message: bytes, refusal: Callable[[str], str | None], *, obeys_attempts: bool) -> Parsed:
    if message == b"poison":
        os._exit(9)
    return parse_request(message, refusal, obeys_attempts=obeys_attempts)


vars(dispatch)["parse_request"] = brittle
main(Settings, run)
