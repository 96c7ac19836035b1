"""The world of the clients: speeds, links, availability, the radio channel, and partitions of the data.

Laws, partitions and fading have a name each in `laws`, `partitions` and `channel`.
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)
