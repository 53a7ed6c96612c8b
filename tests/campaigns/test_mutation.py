"""The mutation campaign: mutants differ from what they are made of, tests catch them, equivalent ones are named."""

import ast
import os
import subprocess
import sys

from campaigns.mutation.__main__ import MODULES, ROOT, draw_sample, read_equivalent
from campaigns.mutation.loading import module_sources
from campaigns.mutation.operators import find_mutants, mutate
from campaigns.mutation.tables import score, score_line
from campaigns.mutation.trying import Verdict, read_verdict

SOURCE = '''
"""A module."""
LIMIT = 3  # things

class Bag:
    def put(self, thing: int = 1) -> bool:
        """Keeps it."""
        if thing < 0 and not self.is_open:
            raise ValueError(f"{thing}: at least {0} expected")
        while thing:
            thing -= 1
            self.things[thing] = -thing
        return True if len(self.things) >= LIMIT else thing == 0
'''


def test_every_mutant_is_another_program_than_the_source_and_than_all_others():
    mutants = find_mutants("bag", SOURCE)
    programs = [ast.unparse(mutate(SOURCE, mutant.place)) for mutant in mutants]
    assert len({*programs, ast.unparse(ast.parse(SOURCE))}) == len(mutants) + 1
    for program in programs:
        compile(program, "bag", "exec")
    operators = {mutant.operator for mutant in mutants}
    assert operators == {"constant", "compare", "and-or", "not", "negate", "remove", "arithmetic", "return", "branches"}


def test_messages_annotations_and_docstrings_are_left_alone():
    changes = [mutant.change for mutant in find_mutants("bag", SOURCE)]
    assert not [change for change in changes if "expected" in change.partition(" -> ")[2]]
    assert not [change for change in changes if "Keeps" in change or "int" in change]


def test_a_sample_has_mutants_of_every_module_and_is_the_same_for_the_same_seed():
    mutants = [
        mutant for name in ("large", "bag") for mutant in find_mutants(name, SOURCE * (20 if name == "large" else 1))
    ]
    sample = draw_sample(mutants, 20, seed=1)
    assert sample == draw_sample(mutants, 20, seed=1) != draw_sample(mutants, 20, seed=2)
    assert sum(mutant.module == "bag" for mutant in sample) == 3
    assert len(set(sample)) == len(sample)


def test_an_equivalent_mutant_that_survives_does_not_count():
    mutants = find_mutants("bag", SOURCE)[:4]
    verdicts = [Verdict(mutant, number < 2, "", 1, 0.0) for number, mutant in enumerate(mutants)]
    assert score(verdicts, {}) == (2, 2, 0)
    assert score(verdicts, {mutants[3].name: "why"}) == (2, 1, 1)
    assert score_line(verdicts, {mutants[3].name: "why"}).endswith("2 caught, 1 survived, 1 equivalent: 66.7 %")


def test_every_mutant_that_is_named_equivalent_is_there_with_a_reason():
    equivalent = read_equivalent()
    modules = {module for module, _, _ in equivalent}
    sources = module_sources(ROOT, MODULES)
    there = {mutant.name for module in modules for mutant in find_mutants(module, sources[module])}
    assert equivalent.keys() <= there
    assert all(len(reason.split()) > 3 for reason in equivalent.values())


TOY = "def is_adult(age):\n    return age >= 18\n\n\ndef is_child(age):\n    return not is_adult(age)\n"
TOY_TEST = (
    "from toy import is_adult\n\n\ndef test_at_18_one_is_an_adult():\n    assert is_adult(18) and not is_adult(17)\n"
)
TRY = """
from pathlib import Path
from campaigns.mutation.operators import find_mutants
from campaigns.mutation.trying import read_recording, record_tests, try_all
sources, recording = {"toy": Path("toy.py").read_text()}, Path("recording.json")
record_tests(sources, ["test_toy.py"], recording)
_, compared, *_, denied = find_mutants("toy", sources["toy"])
try_all([compared, denied], sources, read_recording(recording), Path("journal.jsonl"), workers=1, budget_s=5.0)
"""


def test_a_mutant_is_caught_by_a_test_that_executes_it_and_survives_where_no_test_looks(tmp_path):
    for name, text in (("toy.py", TOY), ("test_toy.py", TOY_TEST), ("try_all.py", TRY)):
        (tmp_path / name).write_text(text)
    surroundings = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "try_all.py"]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [read_verdict(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [(verdict.mutant.change, verdict.is_caught, verdict.by) for verdict in verdicts] == [
        ("age >= 18 -> age > 18", True, "test_toy.py::test_at_18_one_is_an_adult"),
        ("not is_adult(age) -> is_adult(age)", False, ""),
    ]
