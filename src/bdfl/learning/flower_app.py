"""A Flower `ClientApp`, called with the messages a Flower server would send."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bdfl.learning.flower_answers import (
    ACCURACY,
    EXAMPLES,
    LOSS,
    RUN,
    TRAIN_LOSS,
    BadAnswer,
    Config,
    Fitted,
    Judged,
    Place,
    make_context,
    message_config,
    read_count,
    read_first,
    read_number,
    rename_arrays,
    validate_status,
)
from bdfl.learning.flower_arrays import Arrays, name_arrays

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp


class AppClient:
    """A `ClientApp` that answers train and evaluate messages: records "arrays", "config" and "metrics"."""

    def __init__(self, app: "ClientApp") -> None:
        self._app = app

    def initial(self, place: Place) -> Arrays | None:
        return None

    def fit(self, place: Place, round: int, arrays: Arrays) -> Fitted:
        answer = _send(self._app, place, "train", {"arrays": arrays}, {"config": message_config(place, round)})
        metrics = _read_metrics(answer)
        num_examples = read_count(read_first(metrics, EXAMPLES))
        return Fitted(_read_arrays(answer), num_examples, read_number(metrics, TRAIN_LOSS))

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        known = getattr(self._app, "_registered_funcs", None)
        if known is not None and "evaluate.default" not in known:
            return None
        answer = _send(self._app, place, "evaluate", {"arrays": arrays}, {"config": message_config(place, round)})
        metrics = _read_metrics(answer)
        num_examples = read_count(read_first(metrics, EXAMPLES))
        return Judged(read_number(metrics, LOSS), read_number(metrics, ACCURACY), num_examples)


class FunctionApp:
    """A `ClientApp` made of a `client_fn`, possibly with mods: messages of Flower's older API."""

    def __init__(self, app: "ClientApp") -> None:
        self._app = app

    def initial(self, place: Place) -> Arrays | None:
        answer = _send(self._app, place, "get_parameters", {}, {"getparametersins.config": dict(place.config)})
        if answer.config_records["getparametersres.status"]["code"] != 0:
            return None
        return name_arrays(answer.array_records["getparametersres.parameters"].to_numpy_ndarrays())

    def fit(self, place: Place, round: int, arrays: Arrays) -> Fitted:
        config = {"fitins.config": message_config(place, round)}
        answer = _send(self._app, place, "train", {"fitins.parameters": arrays}, config)
        status = answer.config_records["fitres.status"]
        validate_status(status["code"], status["message"])
        found = name_arrays(answer.array_records["fitres.parameters"].to_numpy_ndarrays())
        num_examples = answer.metric_records["fitres.num_examples"]["num_examples"]
        metrics = answer.config_records["fitres.metrics"]
        return Fitted(rename_arrays(found, arrays), read_count(num_examples), read_number(metrics, TRAIN_LOSS))

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        from flwr.common import Code

        config = {"evaluateins.config": message_config(place, round)}
        answer = _send(self._app, place, "evaluate", {"evaluateins.parameters": arrays}, config)
        status = answer.config_records["evaluateres.status"]
        if status["code"] == Code.EVALUATE_NOT_IMPLEMENTED.value:
            return None
        validate_status(status["code"], status["message"])
        loss = read_number(answer.metric_records["evaluateres.loss"], LOSS)
        num_examples = answer.metric_records["evaluateres.num_examples"]["num_examples"]
        metrics = answer.config_records["evaluateres.metrics"]
        return Judged(loss, read_number(metrics, ACCURACY), read_count(num_examples))


def _send(
    app: "ClientApp",
    place: Place,
    kind: str,
    arrays: Mapping[str, Arrays],
    configs: Mapping[str, Config],
) -> "RecordDict":
    """Send a message to the app and return the content of its answer."""
    from flwr.app import ConfigRecord, Message, RecordDict

    content = RecordDict()
    for key, some in arrays.items():
        content[key] = _make_record(some)
    for key, config in configs.items():
        content[key] = ConfigRecord(dict(config))
    answer = app(_make_message(content, place, kind), make_context(place))
    if not isinstance(answer, Message):
        raise BadAnswer(f"it gave a {type(answer).__name__}, expected a message")
    if answer.has_error():
        raise BadAnswer(f"it answered with error {answer.error.code}: {answer.error.reason}")
    return answer.content


def _make_message(content: "RecordDict", place: Place, kind: str) -> "Message":
    """Make a message without a Flower server, which would fill in the sender."""
    from flwr.app import DEFAULT_TTL, Message, Metadata

    metadata = Metadata(
        run_id=RUN,
        message_id="",
        src_node_id=place.client,
        dst_node_id=place.client,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=DEFAULT_TTL,
        message_type=kind,
    )
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload,no-any-return]


def _make_record(arrays: Arrays) -> "ArrayRecord":
    from flwr.app import Array, ArrayRecord

    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = Array(array)
    return record


def _read_arrays(answer: "RecordDict") -> Arrays:
    """Arrays of an answer: the record "arrays" used by strategies, or the only record of arrays."""
    records = answer.array_records
    if "arrays" not in records and len(records) != 1:
        raise BadAnswer(f"{len(records)} records of arrays given, expected one")
    record = records["arrays"] if "arrays" in records else next(iter(records.values()))
    return {name: array.numpy() for name, array in record.items()}


def _read_metrics(answer: "RecordDict") -> dict[str, object]:
    return {key: value for record in answer.metric_records.values() for key, value in record.items()}
