"""A library of made-up runs: what the server does with documents needs no chain."""

import threading

import msgspec

from bdfl.explorer import BadRequest, NotHere
from bdfl.explorer.documents import (
    AccessPointPlace,
    AccessPointRow,
    BlockDocument,
    BlockEvent,
    BlockList,
    BlockRow,
    ClientColumns,
    ClientDocument,
    ClientPlace,
    ClientRow,
    ClientSeries,
    CompareDocument,
    FrontierDocument,
    Growth,
    ModelDocument,
    NetworkDocument,
    Optimality,
    Overview,
    Problem,
    ProblemDocument,
    RunName,
    SeriesDocument,
    Summary,
    VerifyDocument,
    WhatIfDocument,
    WhatIfSettings,
)
from bdfl.explorer.library import Library

SUMMARY = Summary(
    accuracy=0.5, best_accuracy=0.6, best_round=2, total_s=9.0, mean_delay_s=1.0, worst_shortfall=0.1, energy_use=0.7
)


class FakeLibrary(Library):
    """`num_runs` runs of `height` blocks; `name` is the first client's, and `news` what polls find."""

    def __init__(self, *, num_runs=1, height=5, num_clients=3, name="client 0", is_live=True):
        self._num_runs, self.height, self.num_clients = num_runs, height, num_clients
        self.name, self.is_live = name, is_live
        self.news = []
        self.num_polls = 0
        self.failure = None  # raised by polls
        self.asked = []
        self.lock = threading.Lock()

    @property
    def num_runs(self):
        return self._num_runs

    def _check(self, run, what="overview"):
        self.asked.append(what)
        if run >= self._num_runs:
            raise NotHere(f"run {run}: not here")

    def _check_height(self, height):
        if not 1 <= height <= self.height:
            raise NotHere(f"block {height}: not here, 1 to {self.height} expected")

    def _names(self):
        return [self.name, *(f"client {number}" for number in range(1, self.num_clients))]

    def poll(self, run):
        with self.lock:
            self.num_polls += 1
            if self.failure is not None:
                raise self.failure
            found, self.news = self.news, []
            return found

    def grow(self):
        with self.lock:
            self.height += 1
            growth = Growth(height=self.height, summary=SUMMARY, problems=[])
            self.news.append(BlockEvent(rounds=self.rounds(0, self.height, self.height), overview=growth))

    def overview(self, run):
        self._check(run)
        clients = [
            ClientRow(client=number, name=name, samples=10, rate=0.1, public_key="ab" * 32, since=1, until=None)
            for number, name in enumerate(self._names())
        ]
        return Overview(
            kind="chain", name=self.name, run=run, runs=[RunName(run=0, name=self.name, kind="chain")], version="0",
            is_live=self.is_live, is_exported=False, chain="cd" * 32, height=self.height, planned_rounds=None,
            scheduler="drc", aggregation="mean", quorum_rule="majority", work="sha256", model_bytes=100,
            num_parameters=25, tradeoff=1.0, min_clients=1, bandwidth_hz=1e6, clients=clients,
            access_points=[AccessPointRow(name="ap 0")], problems=[Problem(height=0, what=self.name)],
            label_names=None, summary=SUMMARY, status=None,
        )  # fmt: skip

    def rounds(self, run, first=1, last=None, points=2000):
        self._check(run, "rounds")
        if not 1 <= points <= 4000:
            raise BadRequest(f"points: {points} given, 1 to 4000 expected")
        rounds = list(range(first, min(self.height if last is None else last, self.height) + 1))
        ones = [1.0] * len(rounds)
        per_client = [[1.0] * self.num_clients for _ in rounds]
        return SeriesDocument(
            first=first, last=rounds[-1] if rounds else first, num_rounds=self.height, bucket=1, round=rounds,
            time_s=ones, is_measured=False, delay_s=ones, delay_min_s=None, delay_max_s=None, training_s=ones,
            upload_s=ones, mining_s=ones, rest_s=ones, accuracy=ones, loss=ones, num_updates=ones, num_selected=ones,
            proposer=[0] * len(rounds), attempt=[1] * len(rounds), is_empty=[0] * len(rounds),
            flags=[0] * len(rounds), digest=["ab" * 6] * len(rounds), mean_queue=ones, objective=ones,
            clients=ClientColumns(
                energy_share=per_client, queue=per_client, count=[[1] * self.num_clients for _ in rounds],
                state=["s" * self.num_clients] * len(rounds),
            ),
        )  # fmt: skip

    def blocks(self, run, first=None, last=None):
        self._check(run, "blocks")
        last = self.height if last is None else min(last, self.height)
        first = max(1, last - 49) if first is None else first
        rows = [
            BlockRow(
                height=height, digest="ab", time_ms=height, proposer=0, attempt=1, trained=[0], declined=[], missing=[],
                num_reports=1, num_votes=1, is_empty=False, offenders=[], change="", delay_s=1.0, mean_queue=0.0,
                accuracy=None, reason="", problem=None,
            )
            for height in range(last, first - 1, -1)
        ]  # fmt: skip
        return BlockList(first=first, last=last, height=self.height, blocks=rows)

    def block(self, run, height):
        self._check(run, "block")
        self._check_height(height)
        return BlockDocument(
            height=height, has_previous=height > 1, has_next=height < self.height, problem=None,
            sentences=[f"Made by {self.name}."], size_bytes=9, is_verifiable=True,
        )  # fmt: skip

    def raw_block(self, run, height):
        self._check(run, "raw")
        self._check_height(height)
        return msgspec.msgpack.encode([b"block %d" % height, b"certificate"])

    def raw_genesis(self, run):
        self._check(run, "genesis")
        return b"genesis"

    def network(self, run, round=None):
        self._check(run, "network")
        places = [
            ClientPlace(
                client=number, name=name, x_m=0.0, y_m=0.0, access_point=0, gain_db=-90.0, snr_db=20.0, rate_bps=1e6,
                is_reachable=True, is_selected=True, is_delivered=True, is_winner=False, is_online=None, cpu_hz=1e9,
                mining_hz=1e9, power_w=0.1,
            )
            for number, name in enumerate(self._names())
        ]  # fmt: skip
        point = AccessPointPlace(name="ap 0", x_m=0.0, y_m=0.0, is_online=None)
        return NetworkDocument(round=round or 1, has_positions=True, access_points=[point], clients=places, links=[])

    def client(self, run, number):
        self._check(run, "client")
        if number >= self.num_clients:
            raise NotHere(f"client {number}: not here")
        rounds = ClientSeries(
            bucket=1, round=[], time_s=[], state="", training_j=[], upload_j=[], mining_j=[], energy_j=[], budget_j=[],
            queue=[], training_s=[], upload_s=[], count=[],
        )  # fmt: skip
        return ClientDocument(
            client=number, name=self._names()[number], public_key=None, samples=1, rate=0.1, since=1, until=None,
            share=None, epsilon=None, cycles=None, capacitance=None, power_w=None, power_max_w=None, model_bits=None,
            cpu_max_hz=None, mining_max_hz=None, mined=[], contributions=[], num_contributions=0, num_declined=0,
            num_missed=0, num_votes=0, num_reports=0, offences=[], rounds=rounds,
        )  # fmt: skip

    def model(self, run, height, without=None, other=None):
        self._check(run, "model")
        if height > self.height:
            raise NotHere(f"model {height}: not here")
        return ModelDocument(
            height=height, made_in=height, model="ab", rule="mean", is_stored=True, pruned_to=0, is_trusted=False,
            accuracy=None, contributions=[], parents=[], compare=None, without=None,
        )  # fmt: skip

    def what_if(self, run, height, settings):
        self._check(run, "what-if")
        if settings.tradeoff is not None and settings.tradeoff > 1e6:
            raise BadRequest("tradeoff: at most 1e6 expected")
        problem = ProblemDocument(
            round=height or 1, min_clients=1, tradeoff=settings.tradeoff or 1.0, work_cycles=1.0, bandwidth_hz=1.0,
            noise_w_per_hz=1.0, overhead_s=0.0, clients=[],
        )  # fmt: skip
        return WhatIfDocument(
            height=height or self.height + 1, is_next=height is None, settings=settings or WhatIfSettings(), limits=[],
            problem=problem, recorded=None, choices=[],
            certificate=Optimality(bound=None, gap=None, text=""), frontier=[],
        )  # fmt: skip

    def frontier(self, run):
        self._check(run, "frontier")
        return FrontierDocument(state="done")

    def compare(self):
        return CompareDocument(runs=[], curves=[], paired=[])

    def verify(self, run):
        self._check(run, "verify")
        return VerifyDocument(state="done", is_valid=True)
