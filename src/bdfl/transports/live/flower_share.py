"""Local training of one member by its own Flower client."""

import time

from bdfl.learning.attacks import poison_results
from bdfl.learning.flower_bench import Beginning, FlowerBench, FlowerTask
from bdfl.learning.flower_trainer import rehearse, validate_examples
from bdfl.learning.training import NAN, InvalidTraining, Outcome
from bdfl.learning.weights import decode_weights, encode_weights
from bdfl.scenario import Scenario
from bdfl.transports.live.training_orders import DEALT, Judged, JudgeOrder, Ready, Trained, TrainOrder


class FlowerShare:
    """A member's Flower client, bit-identical to a simulation of all clients.

    It trains once at the start, the only way to learn its number of examples.
    """

    def __init__(self, scenario: Scenario, client: int, data: str, model: bytes = b"") -> None:
        """Try the agreed `model` on the client; raises a `BdflError` if it does not fit."""
        if data != DEALT:
            raise InvalidTraining(f"data: {data} given, none expected: a Flower client has its own")
        self._scenario = scenario
        self._client = client
        self._bench = FlowerBench(scenario)
        self._beginning = self._bench.begin(client)
        if model:
            form = self._beginning.form
            self._beginning = Beginning(form, decode_weights(model, form.layout))
        found = rehearse(self._bench, self._beginning, client)
        if model and found.result.outcome is Outcome.DIVERGED:
            raise InvalidTraining(f"learning.flower: {scenario.learning.flower} diverges with the agreed model")
        self._samples = found.num_examples

    @property
    def ready(self) -> Ready:
        layout = self._beginning.form.layout
        return Ready(
            samples=self._samples,
            label_counts=(self._samples,),
            test_samples=0,  # unknown before it evaluates
            num_parameters=layout.num_parameters,
            model_size=len(encode_weights(self._beginning.weights, layout)),
        )

    def train(self, order: TrainOrder) -> Trained:
        form = self._beginning.form
        start = decode_weights(order.model, form.layout) if order.model else self._beginning.weights
        if not self._samples:
            return Trained(number=order.number, model=None, loss=NAN, num_samples=0, duration_ns=0)
        begun_ns = time.monotonic_ns()
        found = self._bench.train(FlowerTask(form, start, order.round, self._client))
        duration_ns = time.monotonic_ns() - begun_ns
        validate_examples(found, self._samples)
        sent = poison_results(self._scenario, start, order.round, [found.result])[0].weights
        return Trained(
            number=order.number,
            model=None if sent is None else encode_weights(sent, form.layout),
            loss=found.result.loss,
            num_samples=self._samples,
            duration_ns=duration_ns,
        )

    def judge(self, order: JudgeOrder) -> Judged:
        """Evaluate a model on this client's own test data."""
        form = self._beginning.form
        found = self._bench.evaluate(FlowerTask(form, decode_weights(order.model, form.layout), 0, self._client))
        return Judged(order.number, NAN, NAN) if found is None else Judged(order.number, found.accuracy, found.loss)
