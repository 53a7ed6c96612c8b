"""Nodes of Flower in this process: a Grid whose every node runs a ClientApp when it is sent a message."""

from collections.abc import Callable, Iterable
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN = 7
Train = Callable[[int, list[np.ndarray], int], list[np.ndarray]]  # client, arrays, round: the arrays it sends


class LocalGrid(Grid):
    """Node i of `node_ids` holds partition i. `deaf` nodes never answer; `gone` ones are not there."""

    def __init__(self, app: ClientApp, node_ids: Iterable[int], deaf: Iterable[int] = ()) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self.node_ids = list(node_ids)
        self.deaf = set(deaf)
        self.gone: set[int] = set()
        self.sent: list[Message] = []
        self._app = app
        self._contexts = {
            node: Context(RUN, node, {"partition-id": place, "num-partitions": len(self.node_ids)}, RecordDict(), {})
            for place, node in enumerate(self.node_ids)
        }

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.sent.append(message)
            node = message.metadata.dst_node_id
            if node in self.deaf or node in self.gone:
                continue
            try:
                replies.append(self._app(message, self._contexts[node]))
            except Exception as error:
                replies.append(Message(Error(code=0, reason=str(error)), reply_to=message))
        return reversed(replies)  # in whatever order they come

    def get_node_ids(self):
        return [node for node in reversed(self.node_ids) if node not in self.gone]

    def set_run(self, run): ...
    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None): ...
    def push_messages(self, messages): ...
    def pull_messages(self, message_ids): ...

    @property
    def run(self): ...


def make_app(train: Train, samples: int = 300, *, tells: bool = True) -> ClientApp:
    """A client in the manner of Flower's quick start, whose training is a function of numpy."""
    app = ClientApp()

    @app.train()
    def learn(message, context):
        arrays, config = message.content["arrays"], message.content["config"]
        found = train(context.node_config["partition-id"], arrays.to_numpy_ndarrays(), config["server-round"])
        sent = ArrayRecord(found) if isinstance(found, list) else found
        metrics = MetricRecord({"loss": float(config["server-round"]), "num-examples": samples})
        return Message(RecordDict({"arrays": sent, "metrics": metrics}), reply_to=message)

    if tells:

        @app.query()
        def tell(message, context):
            answer = ConfigRecord({"partition-id": context.node_config["partition-id"]})
            return Message(RecordDict({"config": answer}), reply_to=message)

    return app


def drift(client: int, arrays: list[np.ndarray], round: int) -> list[np.ndarray]:
    """A training that takes no time: every client pulls its own way."""
    rng = np.random.default_rng([client, round])
    return [(array + rng.normal(size=array.shape)).astype(array.dtype) for array in arrays]
