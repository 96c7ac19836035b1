"""The line of a site: how a task's time divides, by what the server saw and what the site tells."""

from offbeat.core.events import Line


def line_of(seconds: float, took: float, received: float, trained: float) -> Line | None:
    """The parts of the time from a task's assignment to its update, in seconds.

    What the server saw bounds what the site tells. The rest of the time is that before the first part of the
    model and of the update came: half of it counts for each of the two.

    Args:
        seconds: From the assignment until the update had come.
        took: From the first part of the update to its last one, as the server saw it.
        received: From the first part of its models to the last one, as the site tells.
        trained: In local steps, as the site tells. 0 means that it does not tell.

    Returns:
        The parts; None where messages took no time, as a simulation without a network has it.
    """
    took = min(took, seconds)
    trained = min(trained, seconds - took) if trained else seconds - took
    received = min(received, seconds - took - trained)
    latency = max(0.0, seconds - took - trained - received) / 2
    line = Line(received + latency, trained, took + latency, latency)
    return line if line.received or line.sent else None
