"""A server's TLS files, read again when they change: a new certificate needs no restart.

gRPC and the live page check the files before each handshake. Open connections keep the certificate that they
began with.
"""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from offbeat.core.errors import UsageError
from offbeat.net.auth.certificates import SERVER, check_usage, tls_reason
from offbeat.net.auth.credentials import ServerCredentials, pem
from offbeat.net.auth.reloading import ReloadingFiles

_ON_ERROR_MESSAGE = "the certificate read before goes on to serve"


def server_tls(
    credentials: ServerCredentials, on_reload: Callable[[], None] = lambda: None
) -> grpc.ServerCredentials | None:
    """gRPC credentials that follow the files; None means no TLS.

    `on_reload` is called when they are read again. Raises `UsageError` if they cannot be used now; later ones
    that cannot be used are reported in the log.
    """
    certificate, key, client_ca = credentials.certificate, credentials.key, credentials.client_ca
    if certificate is None or key is None:
        return None
    files = [file for file in (certificate, key, client_ca) if file is not None]
    shown = ReloadingFiles(
        files, lambda: _for_grpc(certificate, key, client_ca), _ON_ERROR_MESSAGE, lambda _: on_reload()
    )
    # It is None for what has not changed, whatever gRPC's types say.
    changed: Any = shown.changed
    return grpc.dynamic_ssl_server_credentials(
        shown.now(), changed, require_client_authentication=client_ca is not None
    )


def page_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """The TLS context of the live page, which follows the files. Raises `UsageError` likewise."""
    shown = ReloadingFiles((certificate, key), lambda: _context(certificate, key), _ON_ERROR_MESSAGE)
    first = shown.now()

    def before_handshake(connection: Any, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = shown.now()

    # OpenSSL calls it for each handshake, also for those that name no server.
    first.sni_callback = before_handshake
    return first


def _for_grpc(certificate: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    pair = (pem(key), pem(certificate))
    authority = None if client_ca is None else pem(client_ca)
    # Whether the two fit is checked here: gRPC would not say it before a handshake fails.
    context = _context(certificate, key)
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(
            f"client-ca = {client_ca}: it cannot be used ({tls_reason(error)}); give certificates (PEM)"
        ) from None
    return grpc.ssl_server_certificate_configuration([pair], authority)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    pem(key)
    check_usage(f"cert = {certificate}", pem(certificate), SERVER)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # With a password given, OpenSSL does not ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UsageError(
            f"cert = {certificate}, key = {key}: they cannot be used "
            f"({tls_reason(error)}); give a certificate and its own key, without a password"
        ) from None
    return context
