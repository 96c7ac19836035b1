"""The heart of Offbeat: events in, commands out, and the model they are about.

Nothing here reads a clock, opens a file or a socket, or starts a thread: whoever drives an
algorithm (the simulator, a network server, a replay) brings time and does the work.
"""
