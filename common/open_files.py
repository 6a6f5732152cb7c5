"""How many files the process may have open: a connection is one, too."""

import resource
from typing import Final

OTHER_FILES: Final = 200
"""Those of a service that are no connections of its clients."""


def allow_open_files(wanted: int) -> int:
    """Allow as many as ``wanted``, if the hard limit permits; return how many are allowed, at most ``wanted``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return wanted


def room_for(connections: int) -> int:
    """Return how many connections a service may have, at most ``connections``, so that it finds files for its own."""
    return max(allow_open_files(connections + OTHER_FILES) - OTHER_FILES, 1)
