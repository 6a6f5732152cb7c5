"""TLS proxy for a plain server, and certificates for it."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.testing.proxy import Proxy

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
AUTHORITY = """
[ca]
default_ca = own
[own]
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = DNS:localhost
[req]
distinguished_name = any
"""


def certificate(directory: Path, last_day: str) -> Path:
    """Write a self-signed certificate for localhost, valid from 2020 to ``last_day`` (``491231``), and its key."""
    directory.mkdir()
    (directory / "made.cnf").write_text(AUTHORITY)
    (directory / "index").touch()
    (directory / "serial").write_text("01")
    request = "req -config made.cnf -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request.pem"
    sign = "ca -batch -config made.cnf -selfsign -notext -keyfile key.pem -in request.pem -out certificate.pem"
    for words in (request, f"{sign} -startdate 200101000000Z -enddate {last_day}000000Z"):
        subprocess.run(["openssl", *words.split()], cwd=directory, check=True, capture_output=True)
    return directory / "certificate.pem"


def name_by_subject(certificate: Path) -> str:
    """Return the name by which OpenSSL finds a certificate in a folder."""
    words = ["openssl", "x509", "-hash", "-noout", "-in", str(certificate)]
    return f"{subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()}.0"


@asynccontextmanager
async def encrypted(port: int, certificate: Path, *, clients: Path | None = None) -> AsyncIterator[int]:
    """Yield a TLS port that forwards to the plain ``port``, as managed servers have.

    With ``clients`` each client needs a certificate that this authority has signed.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    async with Proxy(port, ssl=context) as front:
        yield int(front.address.rpartition(":")[2])
