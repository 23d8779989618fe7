"""Every experiment's files and printed commands exist and are valid, without their data."""

from __future__ import annotations

import re
import shlex

import pytest

from fedlightning.compare import arguments, command
from fedlightning.compare import plan as plans
from fedlightning.compare.grid import parse_grid
from fedlightning.compare.plan import Plan, algorithm_arguments, parse_algorithms
from fedlightning.compare.run import Run, hyper_parameters, prepare
from tests.support.paths import CONFIGS, ROOT

EXPERIMENTS = ROOT / "experiments"
PAPERS = sorted(page.parent for page in EXPERIMENTS.glob("*/README.md"))
COMPARISONS = [CONFIGS / "demo.yaml", *(path for paper in PAPERS for path in sorted(paper.glob("*.yaml")))]
NAMES = {}
CHECKED = set()
"""What a paper's comparisons ask of an algorithm: asked again with other data or another model, it is checked once."""


@pytest.fixture(autouse=True)
def _at_the_top(monkeypatch):
    """Names of hyper-parameters are read once a file of an algorithm, not once a comparison."""

    def read_once(run):
        *_, file = (word for word in run.arguments if word.startswith("--config"))
        if file not in NAMES:
            NAMES[file] = hyper_parameters(run)
        return NAMES[file]

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(plans, "hyper_parameters", read_once)


def commands(paper):
    """The commands of a paper's page, as lists of words after ``fedlightning``."""
    (block,) = re.findall(
        r"^## Commands\n\n```\n(.*?)^```", (paper / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return [shlex.split(line, comments=True)[1:] for line in block.replace("\\\n", " ").splitlines() if line[:1] == "f"]


def understood(words, monkeypatch):
    """What ``fedlightning compare`` is asked for."""
    asked = {}
    monkeypatch.setattr(command, "compare", lambda **given: asked.update(given))
    arguments.main(words)
    return asked


def plan(asked, names=None):
    """The plan of a comparison, or of some of its algorithms."""
    values = [f"--{value}" for value in asked["set"]]
    if any("base/gan." in file for file in asked["base"]):
        values.append("--model.init_args.classifier_weights=null")  # comes from a run of its own
    algorithms = parse_algorithms(asked["algorithms"])
    chosen = {name: algorithm for name, algorithm in algorithms.items() if names is None or name in names}
    return Plan(algorithm_arguments(asked["base"], chosen, values), tuple(values))


@pytest.mark.slow
@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_comparison_is_valid(path, tmp_path, monkeypatch):
    asked = understood([f"--config={path}"], monkeypatch)
    assert asked["output"].startswith("runs/")
    comparison = plan(asked)
    grid = parse_grid(asked["grid"])
    known = set()
    for number, (name, words) in enumerate(parse_algorithms(asked["algorithms"]).items()):
        run = comparison.run(name, 0, (), tmp_path / name)
        if grid:
            known |= hyper_parameters(run).keys()  # checks the configuration, too
        is_new = (path.parent, str(words)) not in CHECKED
        CHECKED.add((path.parent, str(words)))
        if number == 0 or (is_new and not grid):
            prepared = prepare(run)
            assert prepared.rounds > 0
            assert not prepared.is_finished
    assert {name for name in grid if "." not in name} <= known


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_command_of_a_page_is_valid(paper, tmp_path, monkeypatch):
    """Every combination is planned, and made where it has a file that none before had."""
    outputs, made_of = set(), set()
    for subcommand, *words in commands(paper):
        if subcommand == "fit":
            run = Run("judge", 0, tuple("--config" if word == "-c" else word for word in words), tmp_path)
            assert prepare(run).rounds > 0
            continue
        asked = understood(words, monkeypatch)
        assert asked["output"] not in outputs
        outputs.add(asked["output"])
        if len(words) > 2:  # those that name a file only are tested above
            first = next(iter(parse_algorithms(asked["algorithms"])))
            comparison = plan(asked, [first])
            run = comparison.run(first, 0, (), tmp_path)
            if not made_of.issuperset(asked["base"]) or "--grid" in words:
                assert prepare(run).rounds > 0
                made_of.update(asked["base"])
            if "--grid" in words:
                assert hyper_parameters(run).keys() & parse_grid(asked["grid"]).keys()


def test_links_of_pages_lead_somewhere():
    """Those to files of this project; others' pages cannot be asked without a network."""
    for page in (EXPERIMENTS / "README.md", *(paper / "README.md" for paper in PAPERS)):
        targets = re.findall(r"\]\((?!https://)([^)]+)\)", page.read_text())
        assert targets
        assert not [target for target in targets if not (page.parent / target).exists()]


def test_every_file_is_used():
    """By a comparison, a command or a picture of its paper's page."""
    for paper in PAPERS:
        text = "\n".join(path.read_text() for path in (*paper.glob("*.yaml"), paper / "README.md"))
        files = [path for path in paper.rglob("*") if path.is_file() and path.name != "README.md"]
        unused = [
            file
            for file in files
            if str(file.relative_to(ROOT)) not in text and f"({file.relative_to(paper)})" not in text
        ]
        assert not unused


def test_there_are_experiments_of_every_paper():
    assert {paper.name for paper in PAPERS} == {"benchmarks", "cdma", "fe_dual_ex", "fed_apm", "fed_mm", "fiaelt"}
    assert len(COMPARISONS) > 30
    index = (EXPERIMENTS / "README.md").read_text()
    assert all(f"({paper.name}/README.md)" in index for paper in PAPERS)
