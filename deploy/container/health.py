"""Ask the live page of this container's server whether its loop turns; the exit code is 1 if it does not.

OFFBEAT_HEALTH is the address, such as https://127.0.0.1:8443/healthz. Without it there is nothing to ask.
The server's name is not checked: its certificate is for the name that sites know, and the way is inside the
container.
"""

import os
import ssl
import sys
import urllib.request


def main() -> int:
    """The exit code."""
    address = os.environ.get("OFFBEAT_HEALTH", "")
    if not address:
        return 0
    context = ssl._create_unverified_context() if address.startswith("https:") else None
    try:
        with urllib.request.urlopen(address, timeout=8, context=context):
            return 0
    except OSError as error:
        print(f"{address}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
