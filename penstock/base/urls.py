"""Check the URL of a server before anything connects, and name the server: alike for all of its URLs."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from penstock.base.secrets import read_at_most

EXPECTED: Final = (
    "redis://host:port/db, rediss://host:port/db, unix:///path?db=0, redis+sentinel://host:port,host:port/service or "
    "redis+cluster://host:port,host:port"
)
SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")

Options = dict[str, tuple[str, str]]
"""The pattern of an option's values, and words for it."""
ANY: Final = (".*", "")
FILE: Final = (".+", "the name of a file")
DB: Final[Options] = {"db": ("[0-9]{1,9}", "a number")}
LOGIN: Final[Options] = {**DB, "username": ANY, "password": ANY}
TRUTH: Final = ("(?i:true|yes|1|false|no|0)", "true or false")
SENTINEL: Final[Options] = {**DB, "sentinel_username": ANY, "sentinel_password": ANY, "sentinel_ssl": TRUTH}
FLAGS: Final = (r"VERIFY_[A-Z0-9_]+(,VERIFY_[A-Z0-9_]+)*", "names of flags of Python's ssl, such as VERIFY_X509_STRICT")
TLS: Final[Options] = {
    "ssl_ca_certs": FILE,
    "ssl_certfile": FILE,
    "ssl_keyfile": FILE,
    "ssl_ca_path": (".+", "the name of a folder"),
    "ssl_ca_data": (".+", "a certificate"),
    "ssl_ciphers": (".+", "names of ciphers"),
    "ssl_password": ANY,
    "ssl_cert_reqs": ("none|optional|required", "none, optional or required"),
    "ssl_check_hostname": ("(?i:true|t|yes|y|1|false|f|no|n|0)", "true or false"),
    "ssl_include_verify_flags": FLAGS,
    "ssl_exclude_verify_flags": FLAGS,
    "ssl_min_version": ("-[12]|76[89]|77[0-2]", "771 (TLS 1.2) or 772 (TLS 1.3)"),
}
"""Options of ``rediss``: those of redis-py."""

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


def server_url(text: str, *, files: bool = True) -> str:
    """Return ``text`` if it is a URL as in ``EXPECTED``. Raise ``ValueError`` without quoting it if not.

    This is stricter than redis-py, which reads ``redis://host/one`` as database 0 and connects. With ``files``, require
    that this machine has the files that the URL names.
    """
    try:
        reason = _fault(text)
    except ValueError:  # from urllib: brackets that do not match, a port that is no number, an option without =
        reason = "it cannot be taken apart"
    if reason:
        raise ValueError(f"not the URL of a server ({_raw_in_password(text) or reason}): expected {EXPECTED}")
    if files and (reason := missing_file(text)):
        raise ValueError(f"not usable on this machine: {reason}")
    return text


def _fault(text: str) -> str | None:
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        return "it contains a space or a control character"
    if "#" in text:
        return "it contains #, which is %23 in a password"
    if text[:1] in ("'", '"') and text[:1] == text[-1:]:
        return "it is in quotes: write it without them"
    if text.startswith(("@", "env:")):
        return "a service reads a URL from a file by a variable that ends in _FILE, e.g. REDIS_FILE=/run/secrets/redis"
    scheme, mark, _ = text.partition("://")
    if not mark or scheme not in SCHEMES:
        return "it does not begin with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
    parts = urlsplit(text)
    if "@" in parts.netloc and parts.password is None:
        return "it has a user without a password; a password alone is written :password@"
    kind = scheme.rpartition("+")[2]
    special = {"unix": _unix_fault, "sentinel": _sentinel_fault, "cluster": _cluster_fault}.get(kind, _tcp_fault)
    return special(parts) or _options_fault(parts)


def _raw_in_password(text: str) -> str | None:
    """Return a hint if the password of ``text``, which is no URL, contains what ends it in a URL."""
    cut = re.match(r"[a-z+]+://(?:[^]/?[@:]+:(?!\d+[/?])|:)[^]/?[@]*([]/?[])[^@]*@", text)
    return f"it has a {cut[1]} before @: in a password, {cut[1]} is written {quote(cut[1], safe='')}" if cut else None


def _options_fault(parts: SplitResult) -> str | None:
    """Return what is wrong with an option; one that the scheme does not have is named only if it is one of TLS."""
    if "+" in parts.query:
        return "an option contains +, which redis-py reads as a space: write %2B for +, %20 for a space"
    known = SENTINEL if "sentinel" in parts.scheme else LOGIN
    known = known | TLS if parts.scheme.startswith("rediss") else known
    options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    for place, (name, value) in enumerate(options):
        if name not in known:
            return f"its option {name} needs TLS, rediss" if name in TLS else "it has an option that we do not know"
        pattern, words = known[name]
        if not re.fullmatch(pattern, value, re.DOTALL):
            return f"its {name} is not {words}"
        if any(name == other for other, _ in options[:place]):
            return f"it has {name} twice"
    return None


def _tcp_fault(parts: SplitResult) -> str | None:
    if not parts.hostname or parts.port == 0:
        return "it names no host" if parts.port != 0 else "its port is 0"
    if parts.path not in ("", "/") and not re.fullmatch("/[0-9]{1,9}", parts.path):
        return "what follows the host is not the number of a database"
    return None


def _unix_fault(parts: SplitResult) -> str | None:
    has_path = not parts.netloc.rpartition("@")[2] and len(parts.path) > 1
    return None if has_path else "the path of a socket begins with a third slash"


def _sentinel_fault(parts: SplitResult) -> str | None:
    if not _are_hosts(parts):
        return "its sentinels are not host:port,host:port"
    return None if re.fullmatch(r"/[\w.:-]+", parts.path) else "it names no service after the sentinels"


def _cluster_fault(parts: SplitResult) -> str | None:
    if not _are_hosts(parts):
        return "its nodes are not host:port,host:port"
    if parts.path not in ("", "/", "/0") or "db" in dict(parse_qsl(parts.query)):
        return "a cluster has no database but 0"
    return None


def _are_hosts(parts: SplitResult) -> bool:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return all(re.fullmatch(r"[A-Za-z0-9_.-]+(:[0-9]{1,5})?", host) for host in hosts)


def missing_file(value: object) -> str | None:
    """Return which option of the URL ``value`` names a file that this machine cannot use, and why; None otherwise."""
    if not isinstance(value, str) or not value.startswith("rediss") or "?" not in value:
        return None
    given = dict(parse_qsl(urlsplit(value).query))
    named = {name: given[name] for name, kind in TLS.items() if kind is FILE and name in given}
    for name, file in named.items():
        try:
            read_at_most(file, 0)
        except (OSError, ValueError) as error:
            return f"{name}={file} cannot be read: {getattr(error, 'strerror', error)}"
    if not Path(given.get("ssl_ca_path", "/")).is_dir():
        return f"ssl_ca_path={given['ssl_ca_path']} is not a folder"
    return _unfit_file(given) if named else None


def _unfit_file(given: dict[str, str]) -> str | None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority, certificate, key = map(given.get, ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    try:
        if authority:
            context.load_verify_locations(authority)
    except ssl.SSLError:
        return f"ssl_ca_certs={authority} has no certificate: expected PEM"
    if key and not certificate:
        return f"ssl_keyfile={key} needs ssl_certfile=FILE, the certificate of this key"
    try:
        if certificate:
            context.load_cert_chain(certificate, key, password=given.get("ssl_password", ""))
    except ssl.SSLError:
        expected = "a certificate and its key, as PEM; ssl_keyfile=FILE and ssl_password name another file of the key"
        return f"ssl_certfile={certificate} cannot be used: expected {expected}"
    return None


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


def server_of(url: str) -> str:
    """Return the name of a URL's server and database, without secrets: two URLs have one name if both lead there.

    It is ``host:port/0``, ``[2001:db8::1]:port/0``, ``/path/of/socket/0``, ``host:port,host:port/0`` for a cluster, or
    ``host:port,host:port/service/0`` for sentinels. ``url_of`` reads it.
    """
    parts = urlsplit(url)
    named, service = dict(parse_qsl(parts.query)).get("db"), ""
    if parts.scheme == "unix":
        where = quote(unquote(parts.path))
    elif "+" in parts.scheme:
        hosts = hosts_of(url, 26379 if "sentinel" in parts.scheme else 6379)
        where = ",".join(sorted({f"{_host(host)}:{port}" for host, port in hosts}))
        service = parts.path.rstrip("/") if "sentinel" in parts.scheme else ""
    else:
        where, named = f"{_host(parts.hostname or 'localhost')}:{parts.port or 6379}", named or parts.path.strip("/")
    return f"{where}{service}/{int(named) if named and named.isdecimal() else named or 0}"


def _host(name: str) -> str:
    """Return one spelling for all of a host."""
    host = unquote(name).lower()
    try:
        address = ip_address(host)
    except ValueError:
        return quote(host)
    address = getattr(address, "ipv4_mapped", None) or address
    if str(address) in ("127.0.0.1", "::1"):
        return "localhost"
    return str(address) if address.version == 4 else f"[{quote(str(address), safe=':')}]"


def url_of(server: str) -> str:
    """Return a URL, without a login, of the server with this name."""
    where, database = split_server(server)
    if where.startswith("/"):
        return f"unix://{where}?db={database}"
    if "/" in where:
        return f"redis+sentinel://{where}?db={database}"
    return f"redis{'+cluster' * (',' in where)}://{where}/{database}"


def split_server(server: str) -> tuple[str, str]:
    """Return the server without its database, and the database; 0 if the name has none."""
    where, _, database = server.rpartition("/")
    return (where, database) if where and database.isdecimal() else (server, "0")


def same_server(one: object, other: object) -> bool:
    """Return True if both are the same, or URLs of one server."""
    return one == other or (isinstance(one, str) and isinstance(other, str) and server_of(one) == server_of(other))


def with_database(url: str, database: object) -> str:
    """Return ``url`` with another database."""
    parts = urlsplit(url)
    options = [option for option in parts.query.split("&") if option and not option.startswith("db=")]
    if parts.scheme == "unix" or "sentinel" in parts.scheme:
        options.append(f"db={database}")
    else:
        parts = parts._replace(path=f"/{database}")
    return joined(parts, options)


def joined(parts: SplitResult, options: Iterable[str]) -> str:
    """Return the URL of these parts with these options, as in a URL; urllib would write ``unix:/path``."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}?{'&'.join(options)}".rstrip("?")


def hosts_of(url: str, port: int = 6379) -> list[tuple[str, int]]:
    """Return host and port of each server in a URL with one or more."""
    named = urlsplit(url).netloc.rpartition("@")[2].split(",")
    return [(host, int(given or port)) for host, _, given in (each.partition(":") for each in named)]
