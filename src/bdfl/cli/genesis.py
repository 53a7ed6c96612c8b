"""`bdfl genesis`: set up a federation, from a draft to a genesis that every member signed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import (
    AllowOption,
    DataOption,
    FlowerModelOption,
    FlowerOption,
    JsonOption,
    OwnKeyOption,
    ScenarioArgument,
    SetOption,
    data_changes,
    flower_changes,
)
from bdfl.cli.terminal import print_json, say, show_result
from bdfl.errors import BdflError
from bdfl.storage import find_kind, write_record

if TYPE_CHECKING:
    from bdfl.federation.genesis_draft import Draft
    from bdfl.federation.genesis_summary import GenesisSummary
    from bdfl.federation.member_card import SignedCard
    from bdfl.scenario import Scenario

_LEAST_DIGITS = 16  # characters of a digest prefix that identify it
_ORGANISER, _MEMBER = "Organiser", "Each member"

DraftArgument = Annotated[Path, typer.Argument(metavar="DRAFT", help="The organiser's draft.")]
GenesisArgument = Annotated[Path, typer.Argument(metavar="GENESIS", help="The genesis file.")]

genesis_app = typer.Typer(
    no_args_is_help=True, help="Set up a federation: collect members' cards, make the genesis, sign it."
)


class WrongDigest(BdflError):
    """A genesis other than the expected one."""


@genesis_app.command("new", rich_help_panel=_ORGANISER)
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
        int | None, typer.Option("--rounds", min=1, help="Rounds of the network.", show_default="the scenario's")
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
    from bdfl.federation.genesis_draft import agree_on_data, draft_federation
    from bdfl.federation.genesis_file import load_live_scenario
    from bdfl.federation.genesis_summary import summarise_draft
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
    write_record(out, draft)
    _print_summary(summarise_draft(draft, agreed), out, as_json=as_json)


@genesis_app.command("card", rich_help_panel=_MEMBER)
def card(
    draft: Annotated[
        Path, typer.Argument(metavar="DRAFT", help="The organiser's draft, or the genesis of a running network.")
    ],
    key: OwnKeyOption,
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
    from bdfl.federation.genesis_draft import add_card, sign_profile
    from bdfl.federation.keys import load_key
    from bdfl.federation.member_card import find_profile

    signer = load_key(key)
    begun, scenario = _open_draft(draft, frozenset(allow or ()))
    profile, machine = find_profile(scenario, begun.scenario, begun.initial_model, client, data, energy)
    signed = sign_profile(signer, scenario, name, client, profile)
    add_card(begun, scenario, signed)  # refuse a card that does not fit here, not at the organiser
    write_record(out, signed)
    if machine is not None and not as_json:
        from bdfl.transports.live.calibration import report_machine

        for what, how_much, source in report_machine(machine).rows():
            say(f"{what:<11} {how_much} ({source})")
    _print_card(signed, out, as_json=as_json)


@genesis_app.command("add-member", rich_help_panel=_ORGANISER)
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
    from bdfl.federation.genesis_draft import add_card, read_draft
    from bdfl.federation.genesis_summary import summarise_draft
    from bdfl.federation.member_card import read_card

    grown, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    for path in cards:
        grown = add_card(grown, scenario, read_card(path))
    write_record(draft, grown, replaces=True)
    _print_summary(summarise_draft(grown, scenario), draft, as_json=as_json)


@genesis_app.command("add-access-point", rich_help_panel=_ORGANISER)
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
    from bdfl.federation.genesis_draft import add_access_point, read_draft
    from bdfl.federation.genesis_summary import summarise_draft
    from bdfl.node.access_point import read_certificate

    grown, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    for path in certificates:
        grown = add_access_point(grown, read_certificate(path))
    write_record(draft, grown, replaces=True)
    _print_summary(summarise_draft(grown, scenario), draft, as_json=as_json)


@genesis_app.command("make", rich_help_panel=_ORGANISER)
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
    from bdfl.federation.genesis_summary import summarise_genesis

    finished, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    file = finish_draft(finished, scenario)
    write_record(out, file)
    _print_summary(summarise_genesis(file, scenario), out, as_json=as_json)


@genesis_app.command("show")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A genesis, a draft or a card.")],
    toml: Annotated[bool, typer.Option("--toml", help="Print only the scenario, with every value.")] = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a genesis, a draft or a card and show what is in it.

    For a genesis, also shows the digest that members sign.

    Examples:
      bdfl genesis show our.genesis
      bdfl genesis show our.draft --toml
    """
    from bdfl.federation.genesis_draft import read_draft
    from bdfl.federation.genesis_file import read_genesis, read_scenario
    from bdfl.federation.genesis_summary import summarise_draft, summarise_genesis
    from bdfl.federation.member_card import read_card

    allowed = frozenset(allow or ())
    kind = find_kind(file)
    if kind == "card":
        _print_card(read_card(file), None, as_json=as_json)
        return
    if kind == "draft":
        draft, scenario = read_draft(file, allowed=allowed)
        text, summary = draft.scenario, summarise_draft(draft, scenario)
    else:
        genesis = read_genesis(file, allowed=allowed)
        text, summary = genesis.scenario, summarise_genesis(genesis, read_scenario(genesis.scenario, allowed))
    if toml:
        say(text, nl=False)
    else:
        _print_summary(summary, None, as_json=as_json)


@genesis_app.command("sign", rich_help_panel=_MEMBER)
def sign(
    genesis: GenesisArgument,
    key: OwnKeyOption,
    card: Annotated[
        Path | None,
        typer.Option("--card", metavar="CARD", help="Your card: refuse a genesis with another card of yours."),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", help="Digest that the others read out, in words or hex: refuse any other genesis."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="SIGNATURE", help="Write the signature to this file instead of GENESIS."),
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a genesis as a member.

    Check it with `show` first, and compare its digest with the other members by voice. The signature goes into the
    file, or with --out into a small one to send back. The organiser collects such files with `merge`.

    Examples:
      bdfl genesis sign our.genesis --key north.key --card north.card
      bdfl genesis sign our.genesis --key north.key --out north.signature
    """
    from bdfl.federation.genesis_file import read_genesis, sign_genesis, take_signature
    from bdfl.federation.genesis_summary import spoken_digest
    from bdfl.federation.keys import load_key
    from bdfl.federation.member_card import read_card

    signer = load_key(key)
    file = read_genesis(genesis, allowed=frozenset(allow or ()))
    if digest is not None:
        _validate_digest(digest, file.chain)
    signed = sign_genesis(file, signer)
    number = file.number_of(signer.public_key)
    if card is not None and number is not None and read_card(card) != file.cards[number]:
        raise WrongDigest(f"{genesis}: has another card of you than {card}; not signed")
    if out is None:
        write_record(genesis, signed, replaces=True)
    else:
        write_record(out, take_signature(file, signer))
    if as_json:
        found = {"digest": file.chain.hex(), "member": number, "file": str(out or genesis)}
        print_json(found | {"missing": signed.missing_signatures})
        return
    say(f"signed as member {number} ({file.names[number or 0]}): {spoken_digest(file.chain)}")
    say(f"digest {file.chain.hex()}")
    say(f"wrote {out or genesis}")
    say("checked: every card is signed by its member and fits scenario and model")
    if card is not None:
        say(f"checked: yours is {card}, for which your data were tried with the model")
    say("not checked: data of others, and yours as they are now (bdfl node doctor)")
    if out is None:
        _print_missing(signed.missing_signatures)


@genesis_app.command("merge", rich_help_panel=_ORGANISER)
def merge(
    genesis: GenesisArgument,
    others: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Signature files, or signed copies of the genesis.")
    ],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the signatures that members sent back to the genesis.

    Signatures of another genesis are refused.

    Example:
      bdfl genesis merge our.genesis north.signature east.signature
    """
    from bdfl.federation.genesis_file import add_signature, merge_signatures, read_genesis, read_signature

    allowed = frozenset(allow or ())
    file = read_genesis(genesis, allowed=allowed)
    for path in others:
        if find_kind(path) == "signature":
            file = add_signature(file, read_signature(path))
        else:
            file = merge_signatures(file, read_genesis(path, allowed=allowed))
    write_record(genesis, file, replaces=True)
    if as_json:
        print_json({"digest": file.chain.hex(), "file": str(genesis), "missing": file.missing_signatures})
        return
    say(f"wrote {genesis}")
    _print_missing(file.missing_signatures)


def _print_summary(summary: "GenesisSummary", written: Path | None, *, as_json: bool) -> None:
    """Print a draft or genesis, and the file it was written to."""
    from bdfl.report.chain_tables import describe_founding

    show_result(summary, lambda: describe_founding(summary), as_json=as_json)
    if written is not None and not as_json:
        say(f"wrote {written}")


def _print_card(signed: "SignedCard", written: Path | None, *, as_json: bool) -> None:
    """Print the public content of a card, and the file it was written to."""
    from bdfl.federation.member_card import describe_card
    from bdfl.report.chain_tables import tabulate_card

    show_result(describe_card(signed.card), lambda: [tabulate_card(signed.card)], as_json=as_json)
    if written is not None and not as_json:
        say(f"wrote {written}: send it to the organiser; your key stays with you")


def _open_draft(path: Path, allowed: frozenset[str]) -> "tuple[Draft, Scenario]":
    """Read a draft; from a genesis, make one like it without members."""
    from bdfl.federation.genesis_draft import draft_again, read_draft
    from bdfl.federation.genesis_file import read_genesis, read_scenario

    if find_kind(path) != "genesis":
        return read_draft(path, allowed=allowed)
    file = read_genesis(path, allowed=allowed)
    return draft_again(file), read_scenario(file.scenario, allowed)


def _validate_digest(expected: str, chain: bytes) -> None:
    """Raise `WrongDigest` unless `expected` is the digest in words or hex, or a prefix of at least 16 characters."""
    from bdfl.federation.genesis_summary import spoken_digest

    text = "".join(character for character in expected.lower() if character.isalnum())
    readings = [chain.hex(), spoken_digest(chain).replace("-", "")]
    if not any(reading.startswith(text) and len(text) >= _LEAST_DIGITS for reading in readings):
        raise WrongDigest(
            f"digest: {spoken_digest(chain)} found, {expected} expected (at least {_LEAST_DIGITS} characters);"
            " not signed"
        )


def _print_missing(missing: list[int]) -> None:
    from bdfl.report.chain_tables import describe_missing

    say(describe_missing(missing))
