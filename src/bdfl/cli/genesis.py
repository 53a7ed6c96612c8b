"""`bdfl genesis`: set up a federation, from a draft to a genesis that every member signed."""

from pathlib import Path
from typing import Annotated

import typer

from bdfl.cli.genesis_draft import (
    KeyOption,
    add_member,
    add_point,
    card,
    make,
    new,
    print_card,
    print_summary,
)
from bdfl.cli.options import AllowOption, JsonOption
from bdfl.cli.terminal import print_json, say
from bdfl.errors import BdflError

_LEAST_DIGITS = 16  # characters of a digest prefix that identify it

GenesisArgument = Annotated[Path, typer.Argument(metavar="GENESIS", help="The genesis file.")]

genesis_app = typer.Typer(
    no_args_is_help=True, help="Set up a federation: collect members' cards, make the genesis, sign it."
)
_ORGANISER, _MEMBER = "Organiser", "Each member"
genesis_app.command("new", rich_help_panel=_ORGANISER)(new)
genesis_app.command("card", rich_help_panel=_MEMBER)(card)
genesis_app.command("add-member", rich_help_panel=_ORGANISER)(add_member)
genesis_app.command("add-access-point", rich_help_panel=_ORGANISER)(add_point)
genesis_app.command("make", rich_help_panel=_ORGANISER)(make)


class WrongDigest(BdflError):
    """A genesis other than the expected one."""


@genesis_app.command("show")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A genesis, a draft or a card.")],
    toml: Annotated[bool, typer.Option("--toml", help="Print only the scenario, with every value.")] = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a genesis, a draft or a card and show what is in it.

    Of a genesis, also the digest that members sign.

    Examples:
      bdfl genesis show our.genesis
      bdfl genesis show our.draft --toml
    """
    from bdfl.federation.genesis_draft import read_draft
    from bdfl.federation.genesis_file import read_genesis
    from bdfl.federation.genesis_summary import summarise_draft, summarise_genesis
    from bdfl.federation.live_scenario import read_scenario
    from bdfl.federation.member_card import read_card
    from bdfl.storage import find_kind

    allowed = frozenset(allow or ())
    kind = find_kind(file)
    if kind == "card":
        print_card(read_card(file), None, as_json=as_json)
    elif kind == "draft":
        draft, scenario = read_draft(file, allowed=allowed)
        if toml:
            say(draft.scenario, nl=False)
            return
        print_summary(summarise_draft(draft, scenario), None, as_json=as_json)
    else:
        genesis = read_genesis(file, allowed=allowed)
        if toml:
            say(genesis.scenario, nl=False)
            return
        scenario = read_scenario(genesis.scenario, allowed)
        print_summary(summarise_genesis(genesis, scenario), None, as_json=as_json)


@genesis_app.command("sign", rich_help_panel=_MEMBER)
def sign(
    genesis: GenesisArgument,
    key: KeyOption,
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
    from bdfl.federation.genesis_file import read_genesis, sign_genesis, take_signature, write_genesis
    from bdfl.federation.genesis_summary import spoken_digest
    from bdfl.federation.keys import load_key
    from bdfl.federation.member_card import read_card
    from bdfl.storage import write_record

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
    from bdfl.federation.genesis_file import (
        add_signature,
        merge_signatures,
        read_genesis,
        read_signature,
        write_genesis,
    )
    from bdfl.storage import find_kind

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
    say(f"wrote {genesis}")
    _print_missing(file.missing_signatures)


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
    if missing:
        say(f"members {', '.join(map(str, missing))} have not signed yet")
    else:
        say("all members have signed: ready to start")
