"""Types of the fields of messages, with the most that a peer may send of each."""

from typing import Annotated

from msgspec import Meta

LONGEST_REASON = 500
HELPERS, ENTRIES = 9, 4096
"""Most helpers of a committee; most updates, and most groups of seeds, of a release."""
_BOX = 8192

Reason = Annotated[str, Meta(max_length=LONGEST_REASON)]
Name = Annotated[str, Meta(max_length=200)]
"""The name of a run, a site or a helper."""
Digest = Annotated[bytes, Meta(max_length=32)]
"""A SHA-256, or a public key."""
Signature = Annotated[bytes, Meta(max_length=64)]
Box = Annotated[bytes, Meta(max_length=_BOX)]
"""The encrypted seeds of one helper."""
Boxes = Annotated[bytes, Meta(max_length=HELPERS * _BOX)]
"""The boxes of one helper, or those of all of them in order."""
