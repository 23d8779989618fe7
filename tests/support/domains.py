"""A small task of domain adaptation and a batch for it."""

from __future__ import annotations

import torch

from fedlightning.algorithms import FedMM
from fedlightning.models import DigitFeatures
from fedlightning.tasks import CDAN, DANN, MDD, DomainAdaptation


def make(adversary, **options):
    torch.manual_seed(0)
    return DomainAdaptation(
        FedMM(0.05, mu=1.0),
        features=DigitFeatures(size=16, widths=(4, 6), kernel=3),
        adversary=adversary,
        hidden=8,
        **options,
    )


def batch(domain):
    draw = torch.Generator().manual_seed(1)
    domain = torch.tensor(domain)
    label = torch.where(domain == 0, torch.randint(0, 10, (len(domain),), generator=draw), -1)
    return {"image": torch.randn(len(domain), 3, 16, 16, generator=draw), "label": label, "domain": domain}


ADVERSARIES = {"DANN": DANN(nu=0.7), "CDAN": CDAN(nu=0.7), "MDD": MDD(nu=0.7, gamma=2.0)}
