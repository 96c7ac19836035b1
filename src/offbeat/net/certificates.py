"""A server's TLS files, read again when they change: a new certificate needs no restart.

gRPC asks before each handshake. Connections that are open keep the certificate they began with.
"""

import logging
import ssl
from pathlib import Path
from threading import Lock
from typing import Any

import grpc

from offbeat.core.errors import UsageError
from offbeat.net.credentials import ServerCredentials, pem

_log = logging.getLogger(__name__)
Seen = tuple[tuple[int, int, int] | None, ...]
"""Of each file when it was written, its size and its number: another one has others."""


class Certificates:
    """The certificate, key and client CA of a server. Raises `UsageError` if they cannot be used now.

    Later ones that cannot be used are reported in the log, once for each change; those before go on to serve.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._seen = self._look()
        self._lock = Lock()  # gRPC asks in threads of its own
        self.now = self._read()

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What new connections are to be shown from now on; none if nothing has changed, or not for good."""
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return None
            self._seen = seen
            try:
                self.now = self._read()
            except UsageError as error:
                _log.error("%s; the certificate read before goes on to serve", error)
                return None
            _log.info("the server's certificate is read again from %s", self._certificate)
            return self.now

    def _look(self) -> Seen:
        files = (self._certificate, self._key, self._client_ca)
        return tuple(_seen(file) for file in files if file is not None)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = (pem(self._key), pem(self._certificate))
        authority = None if self._client_ca is None else pem(self._client_ca)
        self._check()
        return grpc.ssl_server_certificate_configuration([pair], authority)

    def _check(self) -> None:
        """Do they fit together? gRPC would not say before a handshake fails."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, password="")  # rather than ask for it
        except (ssl.SSLError, OSError, ValueError) as error:
            raise UsageError(
                f"tls-cert = {self._certificate}, tls-key = {self._key}: they cannot be used "
                f"({_why(error)}); give a certificate and its own key, without a password"
            ) from None
        try:
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(
                f"client-ca = {self._client_ca}: it cannot be used ({_why(error)}); give certificates (PEM)"
            ) from None


def server_tls(credentials: ServerCredentials) -> grpc.ServerCredentials | None:
    """What gRPC shows to whoever connects, as the files are then; none: no TLS. Raises `UsageError`."""
    if credentials.certificate is None or credentials.key is None:
        return None
    files = Certificates(credentials.certificate, credentials.key, credentials.client_ca)
    fetch: Any = files.changed  # which may say None, whatever gRPC's types say
    return grpc.dynamic_ssl_server_credentials(
        files.now, fetch, require_client_authentication=credentials.client_ca is not None
    )


def _seen(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower()
