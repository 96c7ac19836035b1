"""The site's side: the learner as a Flower `ClientApp`."""

from collections.abc import Callable, Sequence

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from offbeat.data.dataset import Dataset
from offbeat.flower.letters import TO_SITES, seal, unseal
from offbeat.flower.memory import recall, remember
from offbeat.flower.site import answer, greet, layout_of
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
        letter = unseal(message.content, ())
        return _reply(message, [greet(letter, data(context), tell_labels)])

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        letter = unseal(message.content, TO_SITES, layout_of)
        memory = recall(context.state, layout_of(letter.head))
        said = answer(letter, memory, data(context), device)
        remember(memory, context.state)
        return _reply(message, said)

    app = ClientApp()
    app.query(ACTION)(query)
    app.train(ACTION)(train)
    return app


def _reply(message: Message, said: Sequence[FromSite]) -> Message:
    content: RecordDict = seal({}, said)
    return Message(content, reply_to=message)
