"""The token that a connection counts on: valid, bound to its site's key, renewed, used for the first time."""

import logging
import math

from offbeat.core.errors import OffbeatError
from offbeat.net.auth.tokens import HashedToken, TokenAct, Tokens, claim, renew, use

log = logging.getLogger(__name__)


class SiteToken:
    """A site's token, of a file of tokens.

    It is looked up by its hash, which is computed once: whether it is valid is asked at every message.

    Args:
        tokens: The tokens of the file.
        token: The token that the site has shown.
    """

    def __init__(self, tokens: Tokens, token: str) -> None:
        self._tokens, self._token, self._proof = tokens, token, tokens.proof(token)
        # The last renewal, until the site has stored it; then empty.
        self._sent = self._key = ""

    @property
    def site(self) -> str | None:
        """The name that it proves, if it has not expired; None for a token that is not known."""
        return None if self._proof is None else self._proof.name

    @property
    def ended(self) -> TokenAct | None:
        """The act that has ended it. None means that nobody has, or that it is not known."""
        return None if self._proof is None else self._proof.ended

    @property
    def valid(self) -> bool:
        """Whether it still counts."""
        stored = self._stored
        return stored is not None and not stored.expired(self._tokens.clock())

    @property
    def expires(self) -> int:
        """When it expires, in seconds since 1970; 0: never."""
        stored = self._stored
        return 0 if stored is None else stored.expires

    @property
    def due_in(self) -> float:
        """Seconds until it is to be renewed, below 0 where it should have been; infinite for never."""
        stored = self._stored
        return math.inf if stored is None else stored.renewed_at - self._tokens.clock()

    @property
    def unused(self) -> bool:
        """Whether it is a renewal that is used for the first time."""
        stored = self._stored
        return stored is not None and bool(stored.replaces)

    @property
    def _stored(self) -> HashedToken | None:
        """The token as the file has it now; None where it has it no more."""
        if (proof := self._proof) is None:
            return None
        of_site = self._tokens.stored().get(proof.name, ())
        return next((each for each in of_site if each.sha256 == proof.stored.sha256), None)

    def use(self) -> None:
        """End the token that it replaces; one that cannot be ended now stays until its expiry."""
        try:
            use(self._tokens.path, self._token)
        except OffbeatError as error:
            log.error("the token before a renewed one stays valid until it expires: %s", error)

    def claim(self, key: str) -> bool | None:
        """Whether it is bound to the site's key; what cannot be written now is reported in the log."""
        stored, self._key = self._stored, key
        if stored is None or not stored.expires or not (key or stored.key):
            return None
        if stored.key:
            return stored.is_of(key)
        try:
            return claim(self._tokens.path, self._token, key, self._tokens.clock())
        except OffbeatError as error:
            log.error("a token cannot be bound to its site's key, and is not renewed meanwhile: %s", error)
            return None

    def renew(self) -> tuple[str, int] | None:
        """Another one, durable, and when it expires; None where there can be none now, which the log says."""
        if not self.claim(self._key):
            return None
        try:
            made = renew(self._tokens.path, self._token, self._key, self._tokens.clock())
        except OffbeatError as error:
            log.error("a token cannot be renewed: %s", error)
            return None
        if made is None:
            return None
        self._sent = made[0]
        return made

    def stored(self) -> None:
        """The site has stored the last renewal: the connection counts on it from here on."""
        if self._sent:
            self._token, self._sent = self._sent, ""
            self._proof = self._tokens.proof(self._token)
