import subprocess
import sys

import torch


def test_torchvision_works_beside_this_torch():
    import torchvision

    out = torchvision.models.mobilenet_v2(num_classes=3).eval()(torch.zeros(1, 3, 32, 32))
    assert out.shape == (1, 3)
    assert torchvision.transforms.CenterCrop(2)(torch.zeros(3, 4, 4)).shape == (3, 2, 2)


def test_importing_the_package_first_makes_lightning_importable():
    code = "import fedlightning, lightning, torchvision, torchmetrics"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_python_dash_m_shows_help():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "fedlightning", "--help"], check=True, capture_output=True, text=True
    )
    assert "fedlightning compare" in done.stdout
