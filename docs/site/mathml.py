# ruff: noqa: RUF001 - letters of formulas that look like others
"""Formulas as MathML, which browsers draw by themselves: no script, no font, no network.

What our pages use of LaTeX and nothing more; anything else is an error, so that no page ever shows a formula half.
"""

import re
from html import escape

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}^_&\[\]]|\d+(?:\.\d+)?|[A-Za-z]|\S")
GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η", "theta": "θ", "lambda": "λ",
    "mu": "μ", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ",
    "infty": "∞", "nabla": "∇", "ell": "ℓ",
}  # fmt: skip
OPERATORS = {
    "le": "≤", "ge": "≥", "ne": "≠", "in": "∈", "notin": "∉", "cdot": "⋅", "times": "×", "to": "→", "leftarrow": "←",
    "approx": "≈", "subseteq": "⊆", "setminus": "∖", "ldots": "…", "mid": "|", "lvert": "|", "rvert": "|",
    "lVert": "‖", "rVert": "‖", "forall": "∀", "pm": "±", "colon": ":", "{": "{", "}": "}", "|": "‖", "ll": "≪",
}  # fmt: skip
FUNCTIONS = ("ln", "log", "cos", "arccos", "exp", "clip", "erf")
LIMITS = {"sum": "∑", "min": "min", "max": "max", "lim": "lim"}  # with what stands below them, in a formula of its own
SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", "qquad": "2em", " ": "0.25em", "!": "-0.17em"}
STYLES = ("mathbf", "mathrm", "operatorname")
SCRIPT = {"L": "ℒ"}  # \\mathcal


class BadFormula(ValueError):
    """A formula that this page's subset of LaTeX does not have."""


def to_mathml(source: str, *, is_block: bool) -> str:
    """The formula as one `<math>` element; raises `BadFormula`."""
    parser = _Parser(TOKEN.findall(source), source, is_block=is_block)
    row = parser.row(())
    if parser.tokens:
        raise BadFormula(f"{source.strip()!r}: {parser.tokens[0]!r} where nothing is open")
    return f'<math display="{"block" if is_block else "inline"}">{row}</math>'


def split_tag(source: str) -> tuple[str, str | None]:
    """A formula and the number that `\\tag{...}` gives it, if any."""
    match = re.search(r"\\tag\{([^{}]*)\}", source)
    return (source, None) if match is None else (source.replace(match[0], ""), match[1])


class _Parser:
    """Reads tokens from the front."""

    def __init__(self, tokens: list[str], source: str, *, is_block: bool) -> None:
        self.tokens = tokens
        self._source = source
        self._is_block = is_block

    def row(self, ends: tuple[str, ...]) -> str:
        """Everything up to one of the `ends`, or to the end of the formula where there are none."""
        parts = []
        while self.tokens and self.tokens[0] not in ends:
            parts.append(self._scripted())
        if ends and not self.tokens:
            raise BadFormula(f"{self._source.strip()!r}: {' or '.join(ends)} missing")
        return f"<mrow>{''.join(parts)}</mrow>"

    def _scripted(self) -> str:
        """An atom with what stands above and below it."""
        name = self.tokens[0][1:] if self.tokens[0].startswith("\\") else ""
        is_limit = self._is_block and name in LIMITS
        base, after = self._atom(), "<mo>&#x2061;</mo>" if name in FUNCTIONS else ""  # a little room
        scripts: dict[str, str] = {}
        while self.tokens and self.tokens[0] in ("_", "^"):
            mark = self.tokens.pop(0)
            if mark in scripts:
                raise BadFormula(f"{self._source.strip()!r}: two of {mark!r}")
            scripts[mark] = self._atom()
        if not scripts:
            return base + after
        below, above = ("munder", "mover") if is_limit else ("msub", "msup")
        both = "munderover" if is_limit else "msubsup"
        kind = both if len(scripts) == 2 else below if "_" in scripts else above
        return f"<{kind}>{base}{scripts.get('_', '')}{scripts.get('^', '')}</{kind}>{after}"

    def _atom(self) -> str:
        if not self.tokens:
            raise BadFormula(f"{self._source.strip()!r}: ends too early")
        token = self.tokens.pop(0)
        if token == "{":
            return self._close("}")
        if token.startswith("\\"):
            return self._command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in "}^_&":
            raise BadFormula(f"{self._source.strip()!r}: {token!r} has nothing to belong to")
        stretches = ' stretchy="false"' if token in "()[]|" else ""
        return f"<mo{stretches}>{escape('−' if token == '-' else token)}</mo>"

    def _command(self, name: str) -> str:
        if name in GREEK:
            return f"<mi>{GREEK[name]}</mi>"
        if name in OPERATORS:
            stretches = ' stretchy="false"' if name in ("lvert", "rvert", "lVert", "rVert", "|", "mid") else ""
            return f"<mo{stretches}>{escape(OPERATORS[name])}</mo>"
        if name in FUNCTIONS:
            return f"<mi>{name}</mi>"
        if name in LIMITS:
            return f'<mo movablelimits="false">{LIMITS[name]}</mo>'
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name == "frac":
            return f"<mfrac>{self._argument()}{self._argument()}</mfrac>"
        if name == "sqrt":
            if self.tokens and self.tokens[0] == "[":
                self.tokens.pop(0)
                degree = self._close("]")
                return f"<mroot>{self._argument()}{degree}</mroot>"
            return f"<msqrt>{self._argument()}</msqrt>"
        if name in ("bar", "hat"):
            return f'<mover accent="true">{self._argument()}<mo>{"¯" if name == "bar" else "^"}</mo></mover>'
        if name == "text":
            return f"<mtext>{escape(self._words())}</mtext>"
        if name == "mathcal":
            letter = self._words()
            if letter not in SCRIPT:
                raise BadFormula(
                    f"{self._source.strip()!r}: \\mathcal{{{letter}}}, one of {', '.join(SCRIPT)} expected"
                )
            return f"<mi>{SCRIPT[letter]}</mi>"
        if name in STYLES:
            return f'<mi mathvariant="normal" class="{name}">{escape(self._words())}</mi>'
        if name == "left":
            return self._fenced()
        if name == "begin":
            return self._table()
        raise BadFormula(f"{self._source.strip()!r}: \\{name} is not known, see docs/site/mathml.py for what is")

    def _argument(self) -> str:
        """One group or one token."""
        return self._atom()

    def _close(self, end: str) -> str:
        row = self.row((end,))
        self.tokens.pop(0)
        return row

    def _words(self) -> str:
        """The plain text of a group. Tokens have lost their spaces: they are found again in the source."""
        if not self.tokens or self.tokens.pop(0) != "{":
            raise BadFormula(f"{self._source.strip()!r}: {{ expected after \\text and its like")
        taken: list[str] = []
        while self.tokens and self.tokens[0] != "}":
            taken.append(self.tokens.pop(0))
        if not self.tokens:
            raise BadFormula(f"{self._source.strip()!r}: }} missing")
        self.tokens.pop(0)
        pattern = r"\{(\s*" + r"\s*".join(map(re.escape, taken)) + r"\s*)\}"
        match = re.search(pattern, self._source)
        assert match is not None
        return match[1].replace(" ", "\u00a0")

    def _fenced(self) -> str:
        opening = self._fence()
        row = self.row(("\\right",))
        self.tokens.pop(0)
        return f"<mrow>{opening}{row}{self._fence()}</mrow>"

    def _fence(self) -> str:
        token = self.tokens.pop(0) if self.tokens else ""
        shown = {"\\{": "{", "\\}": "}", ".": "", "\\lVert": "‖", "\\rVert": "‖", "\\lvert": "|", "\\rvert": "|"}
        return f'<mo stretchy="true">{shown.get(token, token)}</mo>'

    def _table(self) -> str:
        kind = self._words()
        if kind not in ("aligned", "cases"):
            raise BadFormula(f"{self._source.strip()!r}: \\begin{{{kind}}}, aligned or cases expected")
        rows = [[]]
        while True:
            rows[-1].append(self.row(("&", "\\\\", "\\end")))
            end = self.tokens.pop(0)
            if end == "\\\\":
                rows.append([])
            elif end == "\\end":
                break
        if self._words() != kind:
            raise BadFormula(f"{self._source.strip()!r}: \\end of something else than {kind}")
        body = "".join("<mtr>" + "".join(f"<mtd>{cell}</mtd>" for cell in row) + "</mtr>" for row in rows)
        return f'<mtable class="{kind}" displaystyle="{str(kind == "aligned").lower()}">{body}</mtable>'
