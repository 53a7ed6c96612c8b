"""`bdfl genesis new` to `make`: the organiser collects members' cards in a draft and makes the genesis."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import (
    AllowOption,
    DataOption,
    FlowerModelOption,
    FlowerOption,
    JsonOption,
    ScenarioArgument,
    SetOption,
    data_changes,
    flower_changes,
)
from bdfl.cli.terminal import print_json, print_out, say

if TYPE_CHECKING:
    from bdfl.federation.genesis_draft import Draft
    from bdfl.federation.genesis_summary import FoundingSummary
    from bdfl.federation.member_card import Share, SignedCard
    from bdfl.scenario import Scenario
    from bdfl.transports.live.calibration import Calibration

DraftArgument = Annotated[Path, typer.Argument(metavar="DRAFT", help="The organiser's draft.")]
KeyOption = Annotated[Path, typer.Option("--key", metavar="FILE", help="Your key, from `bdfl keygen`.")]


def new(
    scenario: ScenarioArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DRAFT", help="New file for the draft.")],
    mode: Annotated[
        str | None, typer.Option("--mode", help="emulate or measured.", show_default="the scenario's live.mode")
    ] = None,
    members: Annotated[
        int | None,
        typer.Option("--members", min=1, help="Number of members.", show_default="the scenario's clients.count"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Rounds of the network.", show_default="the scenario's"),
    ] = None,
    data: DataOption = None,
    flower: FlowerOption = None,
    flower_model: FlowerModelOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a draft with the scenario and the untrained model.

    The data are an example. Their type, shape, range and number of labels go into the draft, and every member's own
    data are checked against these. No sample goes into the draft.

    Unless the scenario says otherwise, more than two thirds of the members must agree on a block (bft), and mining is
    Argon2.

    Examples:
      bdfl genesis new quickstart --out our.draft
      bdfl genesis new live --members 3 --data example.npz --out our.draft
      bdfl genesis new quickstart --mode measured --rounds 50 --out our.draft
    """
    from bdfl.federation.genesis_draft import agree_on_data, draft_federation, write_draft
    from bdfl.federation.genesis_summary import summarise_draft
    from bdfl.federation.live_scenario import load_live_scenario
    from bdfl.learning.data import load_data
    from bdfl.learning.flower_trainer import meet_clients
    from bdfl.scenario.files import find_scenario

    modes = [] if mode is None else [f"live.mode={mode}"]
    counts = [] if members is None else [f"clients.count={members}"]
    counts += [] if rounds is None else [f"rounds={rounds}"]
    asked = [*flower_changes(flower, flower_model), *(changes or []), *modes, *counts, *data_changes(data)]
    agreed = load_live_scenario(find_scenario(scenario), asked)
    found = load_data(agreed.data) if agreed.learning.flower is None else meet_clients(agreed)
    agreed = agree_on_data(agreed, found)
    draft = draft_federation(agreed, found)
    write_draft(out, draft)
    print_summary(summarise_draft(draft, agreed), out, as_json=as_json)


def card(
    draft: Annotated[
        Path, typer.Argument(metavar="DRAFT", help="The organiser's draft, or the genesis of a running network.")
    ],
    key: KeyOption,
    name: Annotated[str, typer.Option("--name", help="Your name in the network.")],
    out: Annotated[Path, typer.Option("--out", metavar="CARD", help="New file for the card.")],
    client: Annotated[
        int | None,
        typer.Option(
            "--client", min=0, help="Number of your client in the scenario; optional for own data in measured mode."
        ),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="SOURCE", help="Your data; dealt: your client's share of the scenario's.")
    ] = "dealt",
    energy: Annotated[
        float | None, typer.Option("--energy", metavar="J", min=0, help="Energy budget of a round, in measured mode.")
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write your card: public key, samples of each label, machine limits.

    The card becomes public: all members will know how many samples of each label you hold. The samples, your key and
    anything else stay with you. In measured mode your machine is calibrated now: it trains for a few rounds.

    Examples:
      bdfl genesis card our.draft --key my.key --name me --client 0 --out card
      bdfl genesis card our.draft --key my.key --name me --data my.npz --out card
    """
    from bdfl.federation.genesis_draft import add_card, sign_share
    from bdfl.federation.keys import load_key
    from bdfl.federation.member_card import write_card

    signer = load_key(key)
    begun, scenario = _open_draft(draft, frozenset(allow or ()))
    share, machine = _find_share(begun, scenario, client, data, energy)
    signed = sign_share(signer, scenario, name, client, share)
    add_card(begun, scenario, signed)  # refuse a card that does not fit here, not at the organiser
    write_card(out, signed)
    if machine is not None and not as_json:
        from bdfl.transports.live.calibration import report_machine

        for what, how_much, source in report_machine(machine).rows():
            say(f"{what:<11} {how_much} ({source})")
    print_card(signed, out, as_json=as_json)


def add_member(
    draft: DraftArgument,
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Cards of members.")],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add members' cards to the draft; a newer card of a key replaces the older.

    Example:
      bdfl genesis add-member our.draft north.card east.card
    """
    from bdfl.federation.genesis_draft import add_card, read_draft, write_draft
    from bdfl.federation.genesis_summary import summarise_draft
    from bdfl.federation.member_card import read_card

    grown, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    for path in cards:
        grown = add_card(grown, scenario, read_card(path))
    write_draft(draft, grown, replaces=True)
    print_summary(summarise_draft(grown, scenario), draft, as_json=as_json)


def add_point(
    draft: DraftArgument,
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERTIFICATE...", help="Certificates, or folders of access points.")
    ],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add access points to the draft by their certificates.

    Never send their keys.

    Example:
      bdfl genesis add-access-point our.draft ap-0/certificate.pem
    """
    from bdfl.federation.genesis_draft import add_access_point, read_draft, write_draft
    from bdfl.federation.genesis_summary import summarise_draft
    from bdfl.node.access_point import read_certificate

    grown, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    for path in certificates:
        grown = add_access_point(grown, read_certificate(path))
    write_draft(draft, grown, replaces=True)
    print_summary(summarise_draft(grown, scenario), draft, as_json=as_json)


def make(
    draft: DraftArgument,
    out: Annotated[Path, typer.Option("--out", metavar="GENESIS", help="New file for the genesis.")],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the genesis of a complete draft, for all members to check and sign.

    Participation rates follow from the labels of all members; the first round is scheduled.

    Example:
      bdfl genesis make our.draft --out our.genesis
    """
    from bdfl.federation.genesis_draft import finish_draft, read_draft
    from bdfl.federation.genesis_file import write_genesis
    from bdfl.federation.genesis_summary import summarise_genesis

    finished, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    file = finish_draft(finished, scenario)
    write_genesis(out, file)
    print_summary(summarise_genesis(file, scenario), out, as_json=as_json)


def print_summary(summary: "FoundingSummary", written: Path | None, *, as_json: bool) -> None:
    """Print a draft or genesis, and the file it was written to."""
    if as_json:
        print_json(asdict(summary))
        return
    from bdfl.report.network_tables import describe_founding

    print_out(*describe_founding(summary))
    if written is not None:
        say(f"wrote {written}")


def print_card(signed: "SignedCard", written: Path | None, *, as_json: bool) -> None:
    """Print the public content of a card, and the file it was written to."""
    from bdfl.federation.keys import key_fingerprint

    card = signed.card
    if as_json:
        print_json(
            {
                "name": card.name,
                "client": card.client,
                "public_key": card.public_key.hex(),
                "fingerprint": key_fingerprint(card.public_key),
                "scenario": card.scenario.hex(),
                "label_counts": card.label_counts,
                "limits": {field: getattr(card.limits, field) for field in card.limits.__struct_fields__},
                "conditions": {field: getattr(card.conditions, field) for field in card.conditions.__struct_fields__},
            }
        )
        return
    from bdfl.report.network_tables import tabulate_card

    print_out(tabulate_card(card))
    if written is not None:
        say(f"wrote {written}: send it to the organiser; your key stays with you")


def _open_draft(path: Path, allowed: frozenset[str]) -> "tuple[Draft, Scenario]":
    """Read a draft; from a genesis, make one like it without members."""
    from bdfl.federation.genesis_draft import draft_again, read_draft
    from bdfl.federation.genesis_file import read_genesis
    from bdfl.federation.live_scenario import read_scenario
    from bdfl.storage import find_kind

    if find_kind(path) != "genesis":
        return read_draft(path, allowed=allowed)
    file = read_genesis(path, allowed=allowed)
    return draft_again(file), read_scenario(file.scenario, allowed)


def _find_share(
    draft: "Draft", scenario: "Scenario", client: int | None, data: str, energy_budget_j: float | None
) -> "tuple[Share, Calibration | None]":
    """Return the member's profile after checking its data, and the calibration of its machine if measured."""
    import numpy as np

    from bdfl.experiment.training_run import prepare_run
    from bdfl.federation.member_card import (
        BadShare,
        calibrate_here,
        emulated_share,
        emulated_share_of,
        measured_share,
        validate_client,
    )
    from bdfl.scenario import LiveMode
    from bdfl.transports.live.training_process import DEALT, Setup
    from bdfl.transports.live.training_worker import open_share

    is_measured = scenario.live.mode is LiveMode.MEASURED
    if client is None and (data == DEALT or not is_measured):
        raise BadShare("--client: none given, the number of the scenario's client that you play expected")
    place = client or 0
    is_flower = scenario.learning.flower is not None
    if is_flower and data != DEALT:
        raise BadShare(f"--data: {data} given, none expected: a Flower client has its own")
    validate_client(scenario, place)
    ready = open_share(Setup(draft.scenario, place, data, draft.initial_model)).ready
    counts = np.array(ready.label_counts)
    if data == DEALT and not is_flower:
        federated = prepare_run(scenario)
        counts = federated.partition.label_counts[place]  # before the scenario poisons any
        if not is_measured:
            return emulated_share(federated, place), None
    if not is_measured:
        return emulated_share_of(scenario, place, counts), None
    machine = calibrate_here(scenario, place, data)
    size = len(draft.initial_model)
    return measured_share(scenario, place, counts, machine, size, energy_budget_j=energy_budget_j), machine
