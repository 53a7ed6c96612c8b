"""Flower clients for tests: numbers instead of a model, drawn from the global generators, in every form there is.

Copied into a test's working folder, as somebody's own module would be there.
"""

import random

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    GetParametersRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)

OK = Status(Code.OK, "")
heard = []  # what the clients of this process were told


def begin():
    return [np.random.normal(size=(3, 2)).astype(np.float32), np.array(7, np.int64), np.zeros(2)]


def learn(arrays, number):
    """New arrays of the same types, the number of examples and metrics."""
    weights, steps, moments = arrays
    assert (weights.dtype, steps.dtype, moments.dtype) == (np.float32, np.int64, np.float64)
    noise = np.random.normal(size=weights.shape) + random.random()
    weights *= 0.5  # arrays are the client's own
    return [weights + noise.astype(np.float32), steps + 1, moments + number], 10 + number, {"train_loss": 1.5}


def judge(number):
    """Loss, number of examples, metrics."""
    return float(number), 5 * (number + 1), {"accuracy": 0.25 * number}


class Numbers(NumPyClient):
    def __init__(self, number):
        self.number = number

    def get_parameters(self, config):
        return begin()

    def fit(self, parameters, config):
        return learn(parameters, self.number)

    def evaluate(self, parameters, config):
        return judge(self.number)


class Bytes(Client):
    """The same in the words of Flower's oldest kind of client."""

    def __init__(self, number):
        self.number = number

    def get_parameters(self, ins):
        return GetParametersRes(OK, ndarrays_to_parameters(begin()))

    def fit(self, ins):
        arrays, num_examples, metrics = learn(parameters_to_ndarrays(ins.parameters), self.number)
        return FitRes(OK, ndarrays_to_parameters(arrays), num_examples, metrics)

    def evaluate(self, ins):
        return EvaluateRes(OK, *judge(self.number))


def client_fn(context: Context):
    return Numbers(context.node_config["partition-id"]).to_client()


def unwrapped_fn(context: Context):
    return Numbers(context.node_config["partition-id"])


def numbered_fn(cid: str):
    return Numbers(int(cid)).to_client()


def bytes_fn(context: Context):
    return Bytes(context.node_config["partition-id"])


app_of_function = ClientApp(client_fn)
app = ClientApp()


@app.train()
def train(message: Message, context: Context):
    record = message.content["arrays"]
    arrays, num_examples, metrics = learn(record.to_numpy_ndarrays(), context.node_config["partition-id"])
    named = {name: Array(np.asarray(array)) for name, array in zip(record, arrays, strict=True)}
    metrics = MetricRecord({**metrics, "num-examples": num_examples})
    content = RecordDict({"arrays": ArrayRecord(named), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context):
    loss, num_examples, metrics = judge(context.node_config["partition-id"])
    metrics = {"eval_loss": loss, "eval_acc": metrics["accuracy"], "num-examples": num_examples}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


class Listening(Numbers):
    """Remembers what it was told."""

    def __init__(self, context):
        super().__init__(context.node_config["partition-id"])
        heard.append((dict(context.node_config), dict(context.run_config), dict(context.state)))
        context.state["kept"] = MetricRecord({"number": 1})

    def fit(self, parameters, config):
        heard.append(dict(config))
        print("trained")
        return super().fit(parameters, config)


def listening_fn(context: Context):
    return Listening(context).to_client()


class Bad(Numbers):
    """Does what `how` says in its training, once it has said how many examples it has."""

    how = "none"

    def fit(self, parameters, config):
        arrays, num_examples, metrics = super().fit(parameters, config)
        if config["server-round"] == 1:
            return arrays, num_examples, metrics
        match self.how:
            case "raise":
                raise ValueError("not\ntoday")
            case "exit":
                raise SystemExit(3)
            case "nothing":
                return None
            case "shape":
                return [arrays[0][:2], *arrays[1:]], num_examples, metrics
            case "fewer":
                return arrays[:2], num_examples, metrics
            case "text":
                return [np.array("text"), *arrays[1:]], num_examples, metrics
            case "lists":
                return [[0.0], *arrays[1:]], num_examples, metrics
            case "examples":
                return arrays, num_examples + 1, metrics
            case "half":
                return arrays, 0.5, metrics
            case "nan":
                return [arrays[0] * np.nan, *arrays[1:]], num_examples, metrics
            case "large":
                return [*arrays[:2], np.full(2, 1e300)], num_examples, metrics
        raise AssertionError(self.how)


def bad(how):
    def bad_fn(context: Context):
        client = Bad(context.node_config["partition-id"])
        client.how = how
        return client.to_client()

    return bad_fn


KINDS = ("raise", "exit", "nothing", "shape", "fewer", "text", "lists", "examples", "half", "nan", "large")
globals().update({f"{how}_fn": bad(how) for how in KINDS})


class Shy(NumPyClient):
    """Says nothing of its first arrays, and does not evaluate."""

    def __init__(self, number):
        self.number = number

    def fit(self, parameters, config):
        return learn(parameters, self.number)


def shy_fn(context: Context):
    return Shy(context.node_config["partition-id"]).to_client()


def no_client_fn(context: Context):
    return "a client"


def two_fn(context, more):
    return None


def empty_fn(context: Context):
    """Client 1 has no examples."""
    number = context.node_config["partition-id"]
    return (Empty if number == 1 else Numbers)(number).to_client()


class Empty(Numbers):
    def fit(self, parameters, config):
        return parameters, 0, {}

    def evaluate(self, parameters, config):
        return 0.0, 0, {}


def first_arrays():
    return dict(zip("abc", begin(), strict=True))


def complex_arrays():
    return [np.zeros(2, np.complex64)]


def infinite_arrays():
    return [np.array([np.inf])]
