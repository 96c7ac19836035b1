"""The site's side: the learner as a Flower `ClientApp`."""

from collections.abc import Callable, Sequence

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from offbeat.data.dataset import Dataset
from offbeat.flower.client_task import register, respond
from offbeat.flower.context_state import load_state, save_state
from offbeat.flower.serialization import decode, encode
from offbeat.net.messages import FromSite, Registered
from offbeat.net.messages import Message as OffbeatMessage
from offbeat.net.transport import ProtocolError

ACTION = "offbeat"


def client_app(
    data: Callable[[Context], Dataset],
    *,
    device: str = "cpu",
    threads: int = 1,
    tell_labels: bool = True,
) -> ClientApp:
    """A `ClientApp` that trains on a node's own data what the server's run asks for.

    Args:
        data: Gives a node's dataset; its context has the node's own settings (`context.node_config`). Flower
            may call it in a new process for each message.
        device: PyTorch device.
        threads: PyTorch's threads; more may be faster, and change the last bits of the results.
        tell_labels: Tell the server the number of samples of each class.
    """

    def query(message: Message, context: Context) -> Message:
        registered, _ = _messages(message)
        return _reply(message, [register(registered, data(context), tell_labels)])

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        registered, messages = _messages(message)
        memory = load_state(context.state)
        replies = respond(registered, messages, memory, data(context), device)
        save_state(memory, context.state)
        return _reply(message, replies)

    app = ClientApp()
    app.query(ACTION)(query)
    app.train(ACTION)(train)
    return app


def _messages(message: Message) -> tuple[Registered, list[OffbeatMessage]]:
    """The server's first message, which says what the run is, and the others."""
    match decode(message.content, "server"):
        case [Registered() as registered, *messages]:
            return registered, messages
        case _:
            raise ProtocolError("the server's first message is not registered")


def _reply(message: Message, replies: Sequence[FromSite]) -> Message:
    return Message(encode(replies), reply_to=message)
