"""The loop of a simulation in real time: its steps, its checkpoints, and its reports of progress."""

import time
from collections.abc import Callable

from offbeat.callbacks.callback_list import CallbackList
from offbeat.core.errors import DivergedError
from offbeat.core.model import Model
from offbeat.runs.store import RunStore
from offbeat.sim.backend import LiveBackend
from offbeat.sim.progress import ProgressMeter, Watcher
from offbeat.sim.simulation import Simulation
from offbeat.vectors.allocator import HeapTrimmer

WATCH_SECONDS = 0.1


def run_to_end(
    simulation: Simulation,
    backend: LiveBackend,
    store: RunStore | None,
    watch: Watcher | None,
    checkpoint_seconds: float,
    interrupted: Callable[[], bool],
    callbacks: CallbackList,
) -> Model:
    """Step to the final model, with checkpoints; an interruption leaves one behind."""
    tensors = backend.tensors
    meter, trimmer, version = ProgressMeter(simulation), HeapTrimmer(), tensors.version
    watched = saved = time.monotonic()
    pause = checkpoint_seconds
    try:
        callbacks.on_start()
        if not simulation.engine.rows:
            simulation.start()
        while simulation.stop_reason is None:
            simulation.step()
            if tensors.version != version:
                version = tensors.version
                trimmer.after(tensors.model.values.nbytes)
            now = time.monotonic()
            if watch and now - watched > WATCH_SECONDS:
                watch(meter.progress())
                watched = now
            if simulation.stop_reason is not None:
                # Only the end is left to be written.
                break
            if store and (now - saved > pause or interrupted()):
                store.checkpoint(tensors, backend.clients, simulation.now)
                saved = time.monotonic()
                # Checkpoints take at most 5 % of the time.
                pause = max(checkpoint_seconds, 20 * (saved - now))
            if interrupted():
                raise KeyboardInterrupt
        simulation.finish()
        if watch:
            watch(meter.progress())
        return backend.completed().to("cpu")
    except BaseException as error:
        if store:
            match error:
                case KeyboardInterrupt():
                    store.abandon("interrupted")
                case DivergedError():
                    store.abandon("diverged", str(error))
                case _:
                    store.abandon("failed")
        raise
