"""A training process without a process: for tests of what is done around training."""

from bdfl.transports.live.training_process import Failed, Trained


class IdleTraining:
    """Answers at once, or when told to."""

    def __init__(self, model=b"trained", *, failure=None, duration_ns=5, answers_at_once=True):
        self.model = model
        self.failure = failure
        self.duration_ns = duration_ns
        self.answers_at_once = answers_at_once
        self.asked = []  # model and round of each order
        self.num_stops = 0
        self.is_closed = False
        self._on_done = None

    def train(self, model, round, on_done, rounds_before=()):
        self.asked.append((model, round))
        self._on_done = on_done
        if self.answers_at_once:
            self.answer()

    def answer(self):
        number = len(self.asked)
        if self.failure is not None:
            self._on_done(Failed(number, self.failure))
        else:
            self._on_done(Trained(number, self.model, 0.5, 640, self.duration_ns))

    def wait_ready(self, timeout_s):
        return None

    def stop(self):
        self.num_stops += 1

    def close(self):
        self.is_closed = True
