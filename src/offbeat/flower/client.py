"""The site's side: the learner as a Flower `ClientApp`."""

from collections.abc import Callable, Sequence

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from offbeat.data.dataset import Dataset
from offbeat.flower.client_task import layout_of, register, respond
from offbeat.flower.context_state import load_state, save_state
from offbeat.flower.serialization import TO_SITES, decode, encode
from offbeat.net.messages import FromSite

ACTION = "offbeat"


def client_app(
    data: Callable[[Context], Dataset],
    *,
    device: str = "cpu",
    threads: int = 1,
    tell_labels: bool = True,
) -> ClientApp:
    """A `ClientApp` that trains on a node's own data what the server's run asks for.

    `data` gives a node's dataset; its context has the node's own settings (`context.node_config`). Flower may
    call it in a new process for each message. `threads` are PyTorch's: more may be faster, and change the
    last bits of the results. `tell_labels`: tell the server how many samples of each class there are.
    """

    def query(message: Message, context: Context) -> Message:
        letter = decode(message.content, ())
        return _reply(message, [register(letter, data(context), tell_labels)])

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        letter = decode(message.content, TO_SITES, layout_of)
        memory = load_state(context.state, layout_of(letter.head))
        said = respond(letter, memory, data(context), device)
        save_state(memory, context.state)
        return _reply(message, said)

    app = ClientApp()
    app.query(ACTION)(query)
    app.train(ACTION)(train)
    return app


def _reply(message: Message, said: Sequence[FromSite]) -> Message:
    content: RecordDict = encode({}, said)
    return Message(content, reply_to=message)
