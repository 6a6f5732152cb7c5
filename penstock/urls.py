"""Check the URL of a server before anything connects."""

import re
from typing import Final
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlsplit

EXPECTED: Final = (
    "redis://host:port/db, rediss://host:port/db, unix:///path?db=0, redis+sentinel://host:port,host:port/service or "
    "redis+cluster://host:port,host:port"
)
SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
SENTINEL: Final = frozenset({"db", "sentinel_username", "sentinel_password", "sentinel_ssl"})
LOGIN: Final = frozenset({"db", "username", "password"})

SECRETS: Final = frozenset({"username", "password", "sentinel_username", "sentinel_password"})
UNVERIFIED: Final = {
    "ssl_cert_reqs": ("none", "accepts any certificate"),
    "ssl_check_hostname": ("0|f|false|n|no", "accepts the certificate of any other host"),
    "ssl_exclude_verify_flags": (".+", "skips checks of the certificate"),
    "ssl_min_version": ("-.*|76[89]|770", "accepts TLS older than 1.2"),
}
"""Options that weaken TLS: the pattern of values that do, and the consequence."""


def is_url(text: str) -> bool:
    """Return True if ``text`` begins as the URL of a server does."""
    return text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def server_url(text: str) -> str:
    """Return ``text`` if it is a URL as in ``EXPECTED``. Raise ``ValueError`` without quoting it if not.

    This is stricter than redis-py, which reads ``redis://host/one`` as database 0 and connects.
    """
    try:
        reason = _fault(text)
    except ValueError:  # from urllib: brackets that do not match, a port that is no number, an option without =
        reason = "it cannot be taken apart"
    if reason:
        raise ValueError(f"not the URL of a server ({reason}): expected {EXPECTED}")
    return text


def _fault(text: str) -> str | None:
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        return "it contains a space or a control character"
    if "#" in text:
        return "it contains #, which is %23 in a password"
    if text.startswith(("@", "env:")):
        return "a service reads a URL from a file by a variable that ends in _FILE, e.g. REDIS_FILE=/run/secrets/redis"
    scheme, mark, _ = text.partition("://")
    if not mark or scheme not in SCHEMES:
        return "it does not begin with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
    parts = urlsplit(text)
    if "@" in parts.netloc and parts.password is None:
        return "it has a user without a password; a password alone is written :password@"
    options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    if not re.fullmatch("[0-9]{1,9}", options.get("db", "0")):
        return "its db is not a number"
    kind = scheme.rpartition("+")[2]
    special = {"unix": _unix_fault, "sentinel": _sentinel_fault, "cluster": _cluster_fault}.get(kind, _tcp_fault)
    return special(parts, frozenset(options))


def _tcp_fault(parts: SplitResult, options: frozenset[str]) -> str | None:
    if not parts.hostname or parts.port == 0:
        return "it names no host" if parts.port != 0 else "its port is 0"
    if parts.path not in ("", "/") and not re.fullmatch("/[0-9]{1,9}", parts.path):
        return "what follows the host is not the number of a database"
    return _unknown(parts, options - LOGIN)


def _unknown(parts: SplitResult, options: frozenset[str]) -> str | None:
    """Return the options that the scheme does not have: only TLS has options for TLS."""
    encrypted = {name for name in options if name.startswith("ssl_")} if parts.scheme.startswith("rediss") else set()
    return None if options <= encrypted else "it has an option that we do not know"


def _unix_fault(parts: SplitResult, options: frozenset[str]) -> str | None:
    if parts.netloc.rpartition("@")[2] or len(parts.path) < 2:
        return "the path of a socket begins with a third slash"
    return None if options <= LOGIN else "it has an option that we do not know"


def _sentinel_fault(parts: SplitResult, options: frozenset[str]) -> str | None:
    if not _are_hosts(parts):
        return "its sentinels are not host:port,host:port"
    if not re.fullmatch(r"/[\w.:-]+", parts.path):
        return "it names no service after the sentinels"
    return _unknown(parts, options - SENTINEL)


def _cluster_fault(parts: SplitResult, options: frozenset[str]) -> str | None:
    if not _are_hosts(parts):
        return "its nodes are not host:port,host:port"
    if parts.path not in ("", "/", "/0") or "db" in options:
        return "a cluster has no database but 0"
    return _unknown(parts, options - LOGIN)


def _are_hosts(parts: SplitResult) -> bool:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return all(re.fullmatch(r"[A-Za-z0-9_.-]+(:[0-9]{1,5})?", host) for host in hosts)


def without_login(value: object) -> object:
    """Return ``value``, the URL of a server, without user and password: equal for one server."""
    if not isinstance(value, str) or "://" not in value:
        return value
    parts = urlsplit(value)
    options = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in SECRETS]
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path, sorted(options)


def address_of(url: str) -> str:
    """Return host, port and database of a URL: equal for all ways to write it, except other names of the host."""
    parts = urlsplit(url)
    db = parse_qs(parts.query).get("db", [""])[0]
    if parts.scheme in ("redis", "rediss"):
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}/{db or parts.path.strip('/') or '0'}"
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}/{db or '0'}"


def unverified(value: object) -> list[str]:
    """Return which options of the URL ``value`` weaken TLS, and what to do; an empty list for any other value."""
    if not isinstance(value, str) or not value.startswith("rediss"):
        return []
    options = parse_qsl(urlsplit(value).query)
    return [
        f"{name}={given} {UNVERIFIED[name][1]}, so others may read and change messages on the way: "
        "leave it out, and name the authority of the certificate with ssl_ca_certs=FILE"
        for name, given in options
        if name in UNVERIFIED and re.fullmatch(UNVERIFIED[name][0], given, re.IGNORECASE)
    ]


def hosts_of(url: str, port: int = 6379) -> list[tuple[str, int]]:
    """Return host and port of each server in a URL with one or more."""
    named = urlsplit(url).netloc.rpartition("@")[2].split(",")
    return [(host, int(given or port)) for host, _, given in (each.partition(":") for each in named)]


def server_of(url: str) -> str:
    """Return host, port and database of a URL, or its socket: without a password, and equal for one server."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    if "+" in parts.scheme:  # several Sentinels or cluster nodes
        hosts = hosts_of(url, 26379 if "sentinel" in parts.scheme else 6379)
        database = dict(parse_qsl(parts.query)).get("db", "0")
        return f"{','.join(f'{host}:{port}' for host, port in sorted(hosts))}{parts.path.rstrip('/')}/{database}"
    host = "localhost" if parts.hostname in ("127.0.0.1", "::1", None) else str(parts.hostname)
    return f"{host}:{parts.port or 6379}/{parts.path.strip('/') or 0}"
