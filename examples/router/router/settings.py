"""What an operator may set of router."""

from typing import ClassVar

from common import In, Outs, Pending, PopTimeout, ServiceSettings


class Settings(ServiceSettings):
    """From ``in`` to the list of ``out`` whose name ends in a colon and the first letter of the message."""

    service: ClassVar[str] = "router"
    buries: ClassVar[bool] = True

    in_: In
    pending: Pending
    out: Outs
    pop_timeout: PopTimeout = 10
