from offbeat.world import laws as laws, partitions as partitions
from offbeat.world.availability import Availability as Availability
from offbeat.world.channel import Channel as Channel, Radio as Radio
from offbeat.world.fit import fit_world as fit_world
from offbeat.world.network import Network as Network
from offbeat.world.trace import read_trace as read_trace, trace_text as trace_text
from offbeat.world.world import World as World
