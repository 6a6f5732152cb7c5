"""How many files the process may have open: a connection is one, too."""

import resource


def allow_open_files(wanted: int) -> None:
    """Allow as many as ``wanted``, if the hard limit permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
