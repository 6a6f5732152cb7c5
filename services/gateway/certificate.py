"""The TLS certificate of the gateway's port; its files may be replaced while it is in use."""

import ssl
from pathlib import Path
from typing import Any

from services.gateway.settings import tls


class Certificate:
    """A pair of files, loaded. Raise ``OSError`` if they cannot be used."""

    def __init__(self, certificate: str, key: str, log: Any) -> None:
        self._certificate, self._key, self._log = certificate, key, log
        self._changed_at = self._last_change()
        self.context = tls(certificate, key)

    def renew(self) -> None:
        """Use the certificate for new connections if its files have changed; keep the old one if they are no pair."""
        try:
            changed_at = self._last_change()
            if changed_at == self._changed_at:
                return
            self._changed_at = changed_at
            tls(self._certificate, self._key)  # of its own: a wrong pair must not end up in the one in use
            self.context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            self._log.warning("certificate not renewed", reason=str(error))
        else:
            self._log.info("certificate renewed", file=self._certificate)

    def _last_change(self) -> float:
        return max(Path(file).stat().st_mtime for file in (self._certificate, self._key))
