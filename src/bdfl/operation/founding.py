"""Create a federation: untrained model, member cards, and a complete genesis for a network on one machine.

In emulated mode the chain starts exactly like that of the simulated run with the same keys.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from bdfl.experiment.training_run import Federated, prepare_run
from bdfl.identity import Signer
from bdfl.learning.data import DataSet
from bdfl.learning.flower_trainer import FlowerClients
from bdfl.learning.partition import Partition
from bdfl.learning.weights import encode_weights
from bdfl.learning.workers import open_trainer
from bdfl.operation.calibration import Calibration
from bdfl.operation.genesis_draft import BadDraft, Draft, add_access_point, add_card, begin_draft, finish_draft
from bdfl.operation.genesis_file import GenesisFile, sign_genesis
from bdfl.operation.member_card import SignedCard, make_card
from bdfl.operation.share import Share, calibrate_here, emulated_share, measured_share
from bdfl.scenario import LiveMode, Scenario, scenario_digest


def agree_on_data(scenario: Scenario, data: DataSet | FlowerClients) -> Scenario:
    """Return the scenario with this data's number of labels, input form and input range."""
    partition = msgspec.structs.replace(scenario.partition, num_labels=data.num_labels)
    scenario = msgspec.structs.replace(scenario, partition=partition)
    if not isinstance(data, DataSet):
        return scenario
    low, high = data.input_range
    choice = msgspec.structs.replace(scenario.data, inputs=data.inputs_form, input_range=(low, high))
    return msgspec.structs.replace(scenario, data=choice)


def draft_federation(scenario: Scenario, data: DataSet | FlowerClients) -> Draft:
    """Draft a genesis with the scenario's untrained model; only shape and number of labels of the data matter."""
    nobody = Partition((), np.zeros((0, data.num_labels), dtype=np.int64))
    with open_trainer(scenario, _only_one(data) if isinstance(data, DataSet) else data, nobody) as trainer:
        initial = encode_weights(trainer.initial_weights(), trainer.layout)
        return begin_draft(scenario, trainer.layout, initial, data.num_labels)


def _only_one(data: DataSet) -> DataSet:
    return replace(
        data,
        train_inputs=data.train_inputs[:1],
        train_labels=data.train_labels[:1],
        test_inputs=data.test_inputs[:1],
        test_labels=data.test_labels[:1],
    )


def sign_share(signer: Signer, scenario: Scenario, name: str, client: int | None, share: Share) -> SignedCard:
    """Make the card with which a member joins."""
    return make_card(
        signer,
        bytes.fromhex(scenario_digest(scenario)),
        name,
        client=client,
        label_counts=share.label_counts,
        limits=share.limits,
        conditions=share.conditions,
    )


def found_federation(
    scenario: Scenario,
    signers: Sequence[Signer],
    *,
    names: Sequence[str] | None = None,
    access_points: Sequence[bytes] = (),
    shares: Sequence[Share] | None = None,
    federated: Federated | None = None,
) -> GenesisFile:
    """Create a federation of all clients of the scenario on one machine, signed by every member.

    By default each member holds its part of the scenario's data. Its speed is emulated or that of this machine, as the
    scenario says. `access_points` are certificates in DER; `federated` saves preparing the data again.
    """
    if len(signers) != scenario.clients.count:
        raise BadDraft(f"{len(signers)} keys given, {scenario.clients.count} expected, as clients.count says")
    federated = prepare_run(scenario) if federated is None else federated
    draft = draft_federation(scenario, federated.data)
    names = [f"member {number}" for number in range(len(signers))] if names is None else names
    shares = find_shares(federated, len(draft.initial_model)) if shares is None else shares
    for number, (signer, name, share) in enumerate(zip(signers, names, shares, strict=True)):
        draft = add_card(draft, scenario, sign_share(signer, scenario, name, number, share))
    for certificate in access_points:
        draft = add_access_point(draft, certificate)
    file = finish_draft(draft, scenario)
    for signer in signers:
        file = sign_genesis(file, signer)
    return file


def find_shares(federated: Federated, model_size: int, calibration: Calibration | None = None) -> list[Share]:
    """Return all clients' profiles; in measured mode with this machine's speed, calibrated now unless given."""
    scenario = federated.scenario
    clients = range(scenario.clients.count)
    if scenario.live.mode is LiveMode.EMULATE:
        return [emulated_share(federated, client) for client in clients]
    machine = calibrate_here(scenario, 0) if calibration is None else calibration
    counts = federated.partition.label_counts
    return [measured_share(scenario, client, counts[client], machine, model_size) for client in clients]
