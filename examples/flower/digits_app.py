"""The same client as a Flower ClientApp that answers messages. In this folder:

bdfl run quickstart --flower digits_app:app --flower-model digits_task:Net
"""

from digits_task import Net, load_data, test, train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train_digits(message: Message, context: Context):
    """Trains the model of the message on this client's digits."""
    model, (loader, _) = prepare(message, context)
    loss = train(model, loader)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_digits(message: Message, context: Context):
    """Tries the model of the message on this client's test digits."""
    model, (_, loader) = prepare(message, context)
    loss, accuracy = test(model, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def prepare(message, context):
    """The model that was sent, and the client's data."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
