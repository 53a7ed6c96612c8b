"""The records of a run from its chain: what each block says was decided, who delivered, and what that cost."""

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
    """Follows a chain from its beginning, block after block."""

    def __init__(self, scenario: Scenario, draws: Draws, genesis: Genesis, toolbox: Toolbox) -> None:
        self._scenario = scenario
        self._draws = draws
        self._toolbox = toolbox
        self.chain: ChainState = start_chain(genesis, toolbox)
        self._plan: Plan = plan_round(self.chain.charter, first_prospect(self.chain.charter), toolbox)

    def plan_next(self) -> PlannedRound:
        """The round after the last block, as the chain has agreed on it."""
        # How hard the scheduler worked, and what it proved, is not on the chain: it is what one's own finds out.
        own = self._plan.decision
        decision = replace(read_decision(self.chain.schedule), bound=own.bound, iterations=own.iterations)
        state = self._draws.states[self.chain.height]
        return PlannedRound(self._scenario, scheduled_problem(self.chain), state, decision)

    def settle(self, block: Block) -> RoundRecord:
        """The record of the next round, which ended in `block`."""
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
        """How long mining took (s) and who won, where that is drawn."""
        if self._scenario.mining.mode is not MiningMode.SAMPLED or not planned.decision.is_feasible:
            return None
        races = MiningRaces(self._scenario, planned.state.round, planned.decision.mining_hz, 0.0)
        proposer = block.header.proposer
        return races.finding_s(block.header.attempt)[proposer], proposer


def delivered_by(block: Block) -> PerClientMask:
    """Whose update the block has, (clients,); one that says it has nothing to give does not count.

    A client without data has nothing to deliver and counts: it can never do better.
    """
    mask = np.zeros(len(block.body.modelled.energy_pj), dtype=np.bool_)
    mask[[signed.update.client for signed in block.body.updates if not signed.update.is_declined]] = True
    return mask
