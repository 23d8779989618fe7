"""What pages of algorithms say of configs, measurements and papers."""

from __future__ import annotations

import csv

from website.results import REACHED, algorithm_of, aliases, configs_of, papers_of, reached


def test_aliases_lead_to_classes():
    assert aliases()["FedAvgGDA"] == "FedAvg"
    assert algorithm_of("class_path: fedlightning.algorithms.FedSim") == "FedAvg"
    assert algorithm_of("class_path: torch.optim.Adam") == ""


def test_configs_and_papers_of_an_algorithm():
    assert ("classification", "scaffold") in configs_of("SCAFFOLD")
    assert papers_of("FedMM") == ["fed_mm"]
    assert papers_of("FedSplit") == []


def test_measured_values_are_of_configs_that_exist():
    with REACHED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 40
    assert {row["task"] for row in rows} >= {"classification", "quadratic_saddle", "personalized"}
    text = "\n".join(reached("SCAFFOLD"))
    assert "`classification/scaffold`" in text
