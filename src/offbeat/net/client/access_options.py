"""Options of a site's way to its server and of its credentials, beside those of its kit."""

from typing import Annotated

from pydantic import Field

from offbeat.core.types import Seconds
from offbeat.core.validation import checked_dataclass

_Text = Annotated[str, Field(min_length=1, max_length=4000)]


@checked_dataclass
class AccessOptions:
    """How a site reaches its server. Files and addresses only: no secret is the text of an option.

    Attributes:
        address: The server's HOST:PORT in place of the kit's, for a site that reaches it in another way.
        ca: File of the authority of the server's certificate (PEM). None means the system's.
        certificate: File of the site's own certificate (PEM).
        key: File of the certificate's key (PEM).
        token_file: File with the token that `offbeat enrol` printed.
        proxy: HTTP proxy to the server, http://USER@HOST:PORT, or env for `https_proxy`; its password is in
            OFFBEAT_PROXY_PASSWORD.
        plaintext: Whether there is no TLS beyond loopback, where all can be read and changed.
        give_up_after: Seconds without a server before giving up. None means never.
    """

    address: _Text | None = None
    ca: _Text | None = None
    certificate: _Text | None = None
    key: _Text | None = None
    token_file: _Text | None = None
    proxy: _Text | None = None
    plaintext: bool = False
    give_up_after: Seconds | None = 259200.0
