"""The world of the clients: speeds, links, availability, the radio channel, and partitions of the data.

Laws, partitions and fading have a name each in `laws`, `partitions` and `channel`.
"""

from offbeat.world.availability import Availability
from offbeat.world.channel import Channel
from offbeat.world.fit import fit_world
from offbeat.world.network import Network
from offbeat.world.trace import read_trace, trace_text
from offbeat.world.world import World

__all__ = ["Availability", "Channel", "Network", "World", "fit_world", "read_trace", "trace_text"]
