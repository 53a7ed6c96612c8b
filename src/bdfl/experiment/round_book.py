"""Records of a run, derived from its chain: decisions, deliveries and costs of each block."""

from dataclasses import replace

import numpy as np

from bdfl.arrays import PerClientMask
from bdfl.experiment.simulation import Draws, PlannedRound, record_round
from bdfl.ledger.block import Block, Genesis
from bdfl.ledger.chain import ChainState, apply_block, plan_after, settle_round, start_chain
from bdfl.ledger.genesis import first_prospect
from bdfl.ledger.planning import Plan, plan_round
from bdfl.ledger.round_problem import read_decision
from bdfl.ledger.toolbox import Toolbox
from bdfl.ledger.units import NANO, to_measure
from bdfl.records import RoundRecord
from bdfl.scenario import MiningMode, Scenario
from bdfl.transports.mining import MiningRaces
from bdfl.transports.world import scheduled_problem


class RoundBook:
    """Follows a chain from its genesis, block by block, and derives the round records."""

    def __init__(self, scenario: Scenario, draws: Draws, genesis: Genesis, toolbox: Toolbox) -> None:
        self._scenario = scenario
        self._draws = draws
        self._toolbox = toolbox
        self.chain: ChainState = start_chain(genesis, toolbox)
        self._plan: Plan = plan_round(self.chain.charter, first_prospect(self.chain.charter), toolbox)

    def plan_next(self) -> PlannedRound:
        """Return the round after the last block, as agreed on the chain."""
        # Iterations and bound of the scheduler are not on the chain: they come from planning the round again.
        own = self._plan.decision
        decision = replace(read_decision(self.chain.schedule), bound=own.bound, iterations=own.iterations)
        state = self._draws.states[self.chain.height]
        return PlannedRound(self._scenario, scheduled_problem(self.chain), state, decision)

    def settle(self, block: Block) -> RoundRecord:
        """Record the next round, which ended in `block`."""
        planned, chain = self.plan_next(), self.chain
        body = block.body
        self._plan = plan_after(chain, settle_round(chain, body.updates, body.reports, body.entries), self._toolbox)
        self.chain = apply_block(chain, block, self._toolbox)
        return record_round(
            self._scenario,
            planned.problem,
            planned.state,
            planned.decision,
            to_measure(body.queue_nano[: chain.num_members], NANO),
            delivered_by(block),
            mined=self._mining(planned, block),
            prove_gap=False,
        )

    def _mining(self, planned: PlannedRound, block: Block) -> tuple[float, int] | None:
        """Mining time (s) and winner, if these are sampled."""
        if self._scenario.mining.mode is not MiningMode.SAMPLED or not planned.decision.is_feasible:
            return None
        races = MiningRaces(self._scenario, planned.state.round, planned.decision.mining_hz, 0.0)
        proposer = block.header.proposer
        return races.finding_s(block.header.attempt)[proposer], proposer


def delivered_by(block: Block) -> PerClientMask:
    """Mask of clients with an update in the block that is not declined, (clients,).

    A client without data counts as delivering: it sends the parent's model with 0 samples.
    """
    mask = np.zeros(len(block.body.modelled.energy_pj), dtype=np.bool_)
    mask[[signed.update.client for signed in block.body.updates if not signed.update.is_declined]] = True
    return mask
