"""The site's side: the learner as a Flower `ClientApp`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from offbeat.allowed import NOTHING, Allow
from offbeat.flower.context_state import load_state, save_state
from offbeat.flower.replies import register, respond
from offbeat.flower.serialization import decode, encode
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.torch_learner import TorchLearner
from offbeat.net.client.policy import SitePolicy
from offbeat.net.client.site import OwnModel, Site
from offbeat.net.messages import FromSite, Registered
from offbeat.net.messages import Message as OffbeatMessage
from offbeat.net.transport import ProtocolError

ACTION = "offbeat"


def client_app(
    data: Callable[[Context], Any],
    *,
    model: OwnModel | None = None,
    allow: Allow = NOTHING,
    device: str = "cpu",
    threads: int = 1,
    tell_labels: bool = True,
    policy: SitePolicy | None = None,
) -> ClientApp:
    """A `ClientApp` that trains the tasks of the server's run on a node's own data.

    Args:
        data: Gives a node's data, whatever `offbeat.net.join` takes, or a learner that has them; its context
            has the node's own settings (`context.node_config`). Flower may call it in a new process for each
            message.
        model: The node's own model, as for `offbeat.net.join`.
        allow: Modules and functions that the run may name, as for `offbeat.net.join`.
        device: PyTorch device.
        threads: PyTorch's threads; more may be faster, and change the last bits of the results.
        tell_labels: Tell the server the number of samples of each class.
        policy: What the node refuses to train and to send. None means the default one.
    """

    def site(context: Context) -> Site:
        own = data(context)
        return (
            Site.of(own, model, None, allow, device, policy=policy)
            if not isinstance(own, TorchLearner | LoopLearner)
            else Site.of(learner=own, allow=allow, policy=policy)
        )

    def query(message: Message, context: Context) -> Message:
        registered, _ = _messages(message)
        return _reply(message, [register(registered, site(context), tell_labels)])

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        registered, messages = _messages(message)
        memory = load_state(context.state)
        replies = respond(registered, messages, memory, site(context))
        save_state(memory, context.state)
        return _reply(message, replies)

    app = ClientApp()
    app.query(ACTION)(query)
    app.train(ACTION)(train)
    return app


def _messages(message: Message) -> tuple[Registered, list[OffbeatMessage]]:
    """The registration, which is the server's first message, and the other messages."""
    match decode(message.content, "server"):
        case [Registered() as registered, *messages]:
            return registered, messages
        case _:
            raise ProtocolError("the server's first message is not registered")


def _reply(message: Message, replies: Sequence[FromSite]) -> Message:
    return Message(encode(replies), reply_to=message)
