"""The core of Offbeat: events in, commands out, and the global model.

Nothing here reads a clock, opens a file or a socket, or starts a thread: the driver of an algorithm (the
simulator, a network server, a replay) provides the time and carries out the commands.
"""
