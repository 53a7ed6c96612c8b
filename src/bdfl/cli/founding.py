"""`bdfl keygen` and `bdfl genesis`: from a key to a genesis that every member has checked and signed."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import DataOption, JsonOption, ScenarioArgument, SetOption
from bdfl.cli.terminal import print_json, print_out
from bdfl.errors import BdflError

if TYPE_CHECKING:
    from bdfl.operation.calibration import Calibration
    from bdfl.operation.genesis_draft import Draft
    from bdfl.operation.genesis_summary import FoundingSummary
    from bdfl.operation.member_card import SignedCard
    from bdfl.operation.share import Share
    from bdfl.scenario import Scenario

_LEAST_DIGITS = 16  # characters of a digest that tell it from others

genesis_app = typer.Typer(no_args_is_help=True, help="Found a federation: collect members' cards, agree, sign.")

DraftArgument = Annotated[Path, typer.Argument(metavar="DRAFT", help="The organiser's draft.")]
GenesisArgument = Annotated[Path, typer.Argument(metavar="GENESIS", help="The genesis file.")]
KeyOption = Annotated[Path, typer.Option("--key", metavar="FILE", help="Your key, from `bdfl keygen`.")]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="MODULE:FUNCTION", help="A function that the scenario names and that may run. Repeatable."
    ),
]


class WrongDigest(BdflError):
    """A genesis that is not the one that was expected."""


def keygen(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="New file, member.key unless given; see below.")
    ] = None,
    access_point: Annotated[
        str | None, typer.Option("--access-point", metavar="NAME", help="Key and certificate of an access point.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Name or address that the access point is reached at. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a member's key; or, with --access-point, the TLS key and certificate of an access point in a folder.

    A key is never overwritten and never leaves its file, which only you can read (mode 0600). Keep a copy of it in a
    safe place: without it a member cannot go on. What is printed is public.

    Examples:

      bdfl keygen --out north.key

      bdfl keygen --access-point ap-0 --host 127.0.0.1 --out ap-0
    """
    from bdfl.operation.fingerprint import key_fingerprint

    if access_point is not None:
        _make_access_point(access_point, host or [], out or Path(access_point), as_json=as_json)
        return
    if host:
        raise typer.BadParameter("only for an access point, --access-point NAME expected with it", param_hint="--host")
    from bdfl.operation.key_file import create_key

    file = out or Path("member.key")
    public_key = create_key(file).public_key
    if as_json:
        found = {"file": str(file), "public_key": public_key.hex(), "fingerprint": key_fingerprint(public_key)}
        print_json(found)
        return
    typer.echo(f"public key   {public_key.hex()}")
    typer.echo(f"fingerprint  {key_fingerprint(public_key)}")
    typer.echo(f"wrote {file}: secret, only you can read it; keep a copy in a safe place")


@genesis_app.command("new")
def new(
    scenario: ScenarioArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DRAFT", help="New file for the draft.")],
    mode: Annotated[
        str | None, typer.Option("--mode", help="emulate or measured; the scenario's live.mode unless given.")
    ] = None,
    members: Annotated[
        int | None, typer.Option("--members", min=1, help="How many; the scenario's clients.count unless given.")
    ] = None,
    data: DataOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Organiser: begin a draft with the scenario that all are to agree on and the untrained model.

    The data say only what an input looks like and how many labels there are; none go into the draft. Unless the
    scenario says otherwise, more than two thirds of the members must agree on a block (bft), and mining is Argon2.

    Examples:

      bdfl genesis new quickstart --out our.draft

      bdfl genesis new quickstart --mode measured --members 4 --out our.draft
    """
    from bdfl.learning.data import load_data
    from bdfl.operation.founding import draft_federation
    from bdfl.operation.genesis_draft import write_draft
    from bdfl.operation.genesis_summary import summarise_draft
    from bdfl.scenario import override_scenario

    modes = [] if mode is None else [f"live.mode={mode}"]
    counts = [] if members is None else [f"clients.count={members}"]
    agreed = _open_live(scenario, [*(changes or []), *modes, *counts], data)
    found = load_data(agreed.data)
    agreed = override_scenario(agreed, [f"partition.num_labels={found.num_labels}"])  # also for data of one's own
    draft = draft_federation(agreed, found)
    write_draft(out, draft)
    _print_summary(summarise_draft(draft, agreed), out, as_json=as_json)


@genesis_app.command("card")
def card(
    draft: Annotated[
        Path, typer.Argument(metavar="DRAFT", help="The organiser's draft; the genesis of a network that runs already.")
    ],
    key: KeyOption,
    name: Annotated[str, typer.Option("--name", help="How the others shall call you.")],
    out: Annotated[Path, typer.Option("--out", metavar="CARD", help="New file for the card.")],
    client: Annotated[
        int | None, typer.Option("--client", min=0, help="Which of the scenario's clients to play.")
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="SOURCE", help="Your data; dealt: the client's part of the scenario's.")
    ] = "dealt",
    energy: Annotated[
        float | None, typer.Option("--energy", metavar="J", min=0, help="What a round may cost you, where measured.")
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Member: write the card with which you join: public key, how many samples of each label, what your machine can do.

    The card becomes public: everybody will know how many samples of each label you hold. The samples, your key and
    anything else stay with you. Where machines are measured, yours is calibrated now: it trains for a few rounds.

    Examples:

      bdfl genesis card our.draft --key north.key --name north --client 0 --out north.card

      bdfl genesis card our.draft --key north.key --name north --client 0 --data mine.npz --out north.card
    """
    from bdfl.operation.founding import sign_share
    from bdfl.operation.genesis_draft import add_card
    from bdfl.operation.key_file import load_key
    from bdfl.operation.member_card import write_card

    signer = load_key(key)
    begun, scenario = _open_draft(draft, frozenset(allow or ()))
    share, machine = _find_share(begun, scenario, client, data, energy)
    signed = sign_share(signer, scenario, name, client, share)
    add_card(begun, scenario, signed)  # what does not fit is said now, not by the organiser
    write_card(out, signed)
    if machine is not None and not as_json:
        from bdfl.operation.calibration import report_machine

        for what, how_much, source in report_machine(machine).rows():
            typer.echo(f"{what:<11} {how_much} ({source})")
    _print_card(signed, out, as_json=as_json)


@genesis_app.command("add-member")
def add_member(
    draft: DraftArgument,
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Cards that members sent.")],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Organiser: put members' cards into the draft; a newer card of the same key takes the place of the older.

    Example:

      bdfl genesis add-member our.draft north.card east.card
    """
    from bdfl.operation.genesis_draft import add_card, read_draft, write_draft
    from bdfl.operation.genesis_summary import summarise_draft
    from bdfl.operation.member_card import read_card

    grown, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    for path in cards:
        grown = add_card(grown, scenario, read_card(path))
    write_draft(draft, grown, replaces=True)
    _print_summary(summarise_draft(grown, scenario), draft, as_json=as_json)


@genesis_app.command("add-access-point")
def add_point(
    draft: DraftArgument,
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERTIFICATE...", help="Certificates, or folders of access points.")
    ],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Organiser: list access points in the draft by their certificates. Never send their keys.

    Example:

      bdfl genesis add-access-point our.draft ap-0/certificate.pem
    """
    from bdfl.operation.access_point_files import read_certificate
    from bdfl.operation.genesis_draft import add_access_point, read_draft, write_draft
    from bdfl.operation.genesis_summary import summarise_draft

    grown, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    for path in certificates:
        grown = add_access_point(grown, read_certificate(path))
    write_draft(draft, grown, replaces=True)
    _print_summary(summarise_draft(grown, scenario), draft, as_json=as_json)


@genesis_app.command("make")
def make(
    draft: DraftArgument,
    out: Annotated[Path, typer.Option("--out", metavar="GENESIS", help="New file for the genesis.")],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Organiser: make the genesis of a draft that has all members' cards, for all to check and sign.

    How often each should train follows from everybody's labels; the first round is planned.

    Example:

      bdfl genesis make our.draft --out our.genesis
    """
    from bdfl.operation.genesis_draft import finish_draft, read_draft
    from bdfl.operation.genesis_file import write_genesis
    from bdfl.operation.genesis_summary import summarise_genesis

    finished, scenario = read_draft(draft, allowed=frozenset(allow or ()))
    file = finish_draft(finished, scenario)
    write_genesis(out, file)
    _print_summary(summarise_genesis(file, scenario), out, as_json=as_json)


@genesis_app.command("show")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A genesis, a draft or a card.")],
    toml: Annotated[bool, typer.Option("--toml", help="Only the scenario that is agreed on, every value.")] = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a genesis, a draft or a card and say in plain words what is in it, with the digest that members sign.

    Examples:

      bdfl genesis show our.genesis

      bdfl genesis show our.draft --toml
    """
    from bdfl.operation.genesis_draft import read_draft
    from bdfl.operation.genesis_file import read_genesis
    from bdfl.operation.genesis_summary import summarise_draft, summarise_genesis
    from bdfl.operation.live_scenario import read_scenario
    from bdfl.operation.member_card import read_card
    from bdfl.operation.set_up_file import find_kind

    allowed = frozenset(allow or ())
    kind = find_kind(file)
    if kind == "card":
        _print_card(read_card(file), None, as_json=as_json)
    elif kind == "draft":
        draft, scenario = read_draft(file, allowed=allowed)
        if toml:
            typer.echo(draft.scenario, nl=False)
            return
        _print_summary(summarise_draft(draft, scenario), None, as_json=as_json)
    else:
        genesis = read_genesis(file, allowed=allowed)
        if toml:
            typer.echo(genesis.scenario, nl=False)
            return
        scenario = read_scenario(genesis.scenario, allowed)
        _print_summary(summarise_genesis(genesis, scenario), None, as_json=as_json)


@genesis_app.command("sign")
def sign(
    genesis: GenesisArgument,
    key: KeyOption,
    card: Annotated[
        Path | None, typer.Option("--card", metavar="CARD", help="Your card: refuse a genesis with another one of you.")
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", help="What was read out to you, in words or figures: refuse any other genesis."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="SIGNATURE", help="A small file of its own, instead of in GENESIS.")
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Member: agree to a genesis. Look at it with `show` first, and compare its digest with the others by voice.

    The signature goes into the file, or with --out into a small one to send back; `merge` brings them together.

    Examples:

      bdfl genesis sign our.genesis --key north.key --card north.card

      bdfl genesis sign our.genesis --key north.key --card north.card --out north.signature
    """
    from bdfl.operation.genesis_file import read_genesis, sign_genesis, take_signature, write_genesis
    from bdfl.operation.genesis_summary import spoken_digest
    from bdfl.operation.key_file import load_key
    from bdfl.operation.member_card import read_card
    from bdfl.operation.set_up_file import write_record

    signer = load_key(key)
    file = read_genesis(genesis, allowed=frozenset(allow or ()))
    if digest is not None:
        _validate_digest(digest, file.chain)
    signed = sign_genesis(file, signer)
    number = file.number_of(signer.public_key)
    if card is not None and number is not None and read_card(card) != file.cards[number]:
        raise WrongDigest(f"{genesis}: has another card of you than {card}; not signed")
    if out is None:
        write_genesis(genesis, signed, replaces=True)
    else:
        write_record(out, take_signature(file, signer))
    if as_json:
        found = {"digest": file.chain.hex(), "member": number, "file": str(out or genesis)}
        print_json(found | {"missing": signed.missing_signatures})
        return
    typer.echo(f"signed as member {number} ({file.names[number or 0]}): {spoken_digest(file.chain)}")
    typer.echo(f"digest {file.chain.hex()}")
    typer.echo(f"wrote {out or genesis}")
    if out is None:
        _print_missing(signed.missing_signatures)


@genesis_app.command("merge")
def merge(
    genesis: GenesisArgument,
    others: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Signatures, or copies of the genesis that were signed.")
    ],
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Organiser: put the signatures that members sent back into the genesis. Of any other genesis they are refused.

    Example:

      bdfl genesis merge our.genesis north.signature east.signature
    """
    from bdfl.operation.genesis_file import (
        add_signature,
        merge_signatures,
        read_genesis,
        read_signature,
        write_genesis,
    )
    from bdfl.operation.set_up_file import find_kind

    allowed = frozenset(allow or ())
    file = read_genesis(genesis, allowed=allowed)
    for path in others:
        if find_kind(path) == "signature":
            file = add_signature(file, read_signature(path))
        else:
            file = merge_signatures(file, read_genesis(path, allowed=allowed))
    write_genesis(genesis, file, replaces=True)
    if as_json:
        print_json({"digest": file.chain.hex(), "file": str(genesis), "missing": file.missing_signatures})
        return
    typer.echo(f"wrote {genesis}")
    _print_missing(file.missing_signatures)


def _make_access_point(name: str, hosts: list[str], folder: Path, *, as_json: bool) -> None:
    from bdfl.encoding import digest
    from bdfl.operation.access_point_files import CERTIFICATE_FILE, KEY_FILE, create_access_point

    if not hosts:
        raise typer.BadParameter("a name or address that members reach it at expected", param_hint="--host")
    found = digest(create_access_point(folder, name, hosts))
    if as_json:
        print_json({"folder": str(folder), "name": name, "hosts": hosts, "certificate": found.hex()})
        return
    typer.echo(f"certificate  {found.hex()}")
    typer.echo(f"wrote {folder / KEY_FILE}: secret, only you can read it")
    typer.echo(f"wrote {folder / CERTIFICATE_FILE}: send it to the organiser")


def _open_live(name: str, changes: list[str], data: str | None) -> "Scenario":
    from bdfl.operation.live_scenario import load_live_scenario
    from bdfl.scenario.learning import is_path
    from bdfl.scenario.shipped import find_scenario
    from bdfl.scenario.toml_text import toml_value

    if data is not None:
        source = str(Path(data).absolute()) if is_path(data) else data
        changes = [*changes, f"data.source={toml_value(source)}"]
    return load_live_scenario(find_scenario(name), changes)


def _open_draft(path: Path, allowed: frozenset[str]) -> "tuple[Draft, Scenario]":
    """The draft in a file; of a genesis, one like it that has no members yet."""
    from bdfl.operation.genesis_draft import draft_again, read_draft
    from bdfl.operation.genesis_file import read_genesis
    from bdfl.operation.live_scenario import read_scenario
    from bdfl.operation.set_up_file import find_kind

    if find_kind(path) != "genesis":
        return read_draft(path, allowed=allowed)
    file = read_genesis(path, allowed=allowed)
    return draft_again(file), read_scenario(file.scenario, allowed)


def _find_share(
    draft: "Draft", scenario: "Scenario", client: int | None, data: str, energy_budget_j: float | None
) -> "tuple[Share, Calibration | None]":
    """What the member brings; what its machine can do, if that was measured."""
    import msgspec

    from bdfl.experiment.training_run import prepare_run
    from bdfl.learning.data import load_data
    from bdfl.operation.share import (
        BadShare,
        calibrate_here,
        count_labels,
        emulated_share,
        emulated_share_of,
        measured_share,
    )
    from bdfl.scenario import LiveMode
    from bdfl.transports.live.training_orders import DEALT

    is_measured = scenario.live.mode is LiveMode.MEASURED
    if client is None and (data == DEALT or not is_measured):
        raise BadShare("--client: none given, the number of the scenario's client that you play expected")
    place = client or 0
    if not is_measured and data == DEALT:
        return emulated_share(prepare_run(scenario), place), None
    if data == DEALT:
        counts = prepare_run(scenario).partition.label_counts[place]
    else:
        counts = count_labels(load_data(msgspec.structs.replace(scenario.data, source=data)), draft.num_labels)
    if not is_measured:
        return emulated_share_of(scenario, place, counts), None
    machine = calibrate_here(scenario, place, data)
    size = len(draft.initial_model)
    return measured_share(scenario, place, counts, machine, size, energy_budget_j=energy_budget_j), machine


def _validate_digest(expected: str, chain: bytes) -> None:
    """Raises `WrongDigest` unless `expected` is how somebody reads the digest out, at least its first 64 bits."""
    from bdfl.operation.genesis_summary import spoken_digest

    text = "".join(character for character in expected.lower() if character.isalnum())
    readings = [chain.hex(), spoken_digest(chain).replace("-", "")]
    if not any(reading.startswith(text) and len(text) >= _LEAST_DIGITS for reading in readings):
        raise WrongDigest(
            f"digest: {spoken_digest(chain)} found, {expected} expected (at least {_LEAST_DIGITS} characters);"
            " not signed"
        )


def _print_summary(summary: "FoundingSummary", written: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary))
        return
    from bdfl.report.genesis_tables import describe_founding

    print_out(*describe_founding(summary))
    if written is not None:
        typer.echo(f"wrote {written}")


def _print_card(signed: "SignedCard", written: Path | None, *, as_json: bool) -> None:
    from bdfl.operation.fingerprint import key_fingerprint

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
    from bdfl.report.genesis_tables import tabulate_card

    print_out(tabulate_card(card))
    if written is not None:
        typer.echo(f"wrote {written}: send it to the organiser; your key stays with you")


def _print_missing(missing: list[int]) -> None:
    if missing:
        typer.echo(f"members {', '.join(map(str, missing))} have not signed yet")
    else:
        typer.echo("all members have signed: ready to start")
