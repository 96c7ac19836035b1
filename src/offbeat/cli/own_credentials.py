"""The credentials of `offbeat serve`: those of its options, else the state directory's own."""

from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.cli.state_dir import TOKENS

if TYPE_CHECKING:
    from offbeat.net.auth.credentials import ServerCredentials


def with_own(credentials: "ServerCredentials", state: Path, listen: str) -> "ServerCredentials":
    """Credentials completed by the state directory's own certificate and tokens, if it has the certificate.

    A Unix socket is a proxy's, which has a certificate of its own.

    Args:
        credentials: What the options give.
        state: The state directory.
        listen: Where the server listens.
    """
    from dataclasses import replace

    from offbeat.net.address import socket_path
    from offbeat.net.auth.ca import OwnAuthority

    own = OwnAuthority(state)
    if not own.exists:
        return credentials
    if credentials.certificate is None and not credentials.insecure_plaintext and socket_path(listen) is None:
        credentials = replace(credentials, certificate=own.certificate, key=own.key)
    if credentials.tokens is None and credentials.client_ca is None and not credentials.insecure_any_name:
        credentials = replace(credentials, tokens=state / TOKENS)
    return credentials
