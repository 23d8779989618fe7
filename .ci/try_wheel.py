"""Install a wheel into an empty environment and try it there: first as a client machine has it, then with all extras.

    python .ci/try_wheel.py dist/fedlightning-0.1.0-py3-none-any.whl oldest build/oldest

``oldest`` takes every direct dependency at its lower bound, ``newest`` whatever the index has. The environment is that
of the Python that runs this file; the oldest versions need Python 3.10 or 3.11.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
SUBSET = (
    *("algorithms/test_fed_avg.py", "algorithms/test_fed_mm.py", "algorithms/test_scaffold.py"),
    *("callbacks", "cli/test_app.py", "cli/test_default_logger.py", "data", "models", "plotting"),
    *(
        "oracle/test_vectorized.py",
        "tasks/checkpoints/test_checkpointed.py",
        "tasks/test_domain_adaptation.py",
        "tasks/test_gan.py",
    ),
    *("test_lightning_versions.py", "test_torchvision.py"),
)
OWN_TENSORS = """
import fedlightning, lightning, torch
from fedlightning.algorithms import FedAvg
from fedlightning.models import LogisticRegression
from fedlightning.tasks import Classification
from torch.utils.data import TensorDataset

x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
sets = [TensorDataset(part, (part.sum(1) > 0).long()) for part in x.split(100)]
data = fedlightning.FederatedDataModule.from_datasets(train=sets, val=sets, batch_size=20, local_steps=5)
trainer = lightning.Trainer(max_steps=30, accelerator="cpu", enable_progress_bar=False, logger=False)
trainer.fit(Classification(FedAvg(lr=0.5), network=LogisticRegression(4, 2), classes=2), data)
assert trainer.callback_metrics["val_accuracy"] > 0.9, trainer.callback_metrics
print("own tensors:", float(trainer.callback_metrics["val_accuracy"]))
"""


def check_contents(wheel: Path) -> None:
    """Refuse a wheel that lacks what users need, or has what is not theirs."""
    names = ZipFile(wheel).namelist()
    foreign = [name for name in names if not re.match(r"fedlightning(/|-[^/]*\.dist-info/)", name)]
    missing = [
        each for each in ("fedlightning/py.typed", "licenses/LICENSE") if not any(n.endswith(each) for n in names)
    ]
    if foreign or missing:
        sys.exit(f"{wheel.name}: foreign {foreign}, missing {missing}")


def lower_bounds(wheel: Path) -> list[str]:
    """Return the wheel's requirements at their lower bounds, with those of extras for users."""
    metadata = next(name for name in ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    lines = ZipFile(wheel).read(metadata).decode().splitlines()
    wanted = [line for line in lines if line.startswith("Requires-Dist: ") and not re.search("== '(dev|docs)'", line)]
    bounds = {}
    for line in wanted:
        if found := re.match(r"Requires-Dist: ([\w-]+)(?:\[[\w,]+\])?[^;]*>=([\w.]+)", line):
            bounds[found[1]] = found[2]
    return [f"{name}=={version}" for name, version in bounds.items()]


def main(wheel: Path, kind: str, folder: Path) -> None:
    """Make the environment and try the wheel in it."""
    check_contents(wheel)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder / "venv", with_pip=True)
    scripts = (folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")).absolute()
    pinned = folder / "constraints.txt"
    pinned.write_text("\n".join(lower_bounds(wheel) if kind == "oldest" else []) + "\n")

    def run(*command: str | Path) -> None:
        print("+", *command, flush=True)
        if code := subprocess.run([str(each) for each in command], cwd=folder).returncode:
            sys.exit(f"{kind}: failed with status {code}")

    def install(*what: str) -> None:
        pip = (scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "-c", pinned.absolute(), *what)

    install(f"{wheel.absolute()}")
    run(scripts / "fedlightning", "--version")
    run(scripts / "fedlightning", "--help")
    run(scripts / "python", "-W", "ignore", "-c", OWN_TENSORS)
    install(f"{wheel.absolute()}[all]", "pytest>=8", "pytest-xdist>=3.5", "scipy>=1.11")
    run(scripts / "python", "-m", "pip", "list", "--disable-pip-version-check")
    for name in ("tests", "configs", "pyproject.toml", "README.md"):  # beside no fedlightning/: the wheel is tested
        source = ROOT / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
    configs = [f"--config=configs/classification/{name}.yaml" for name in ("base", "fed_avg")]
    run(scripts / "fedlightning", "fit", *configs, "--trainer.max_steps=20", "--trainer.accelerator=cpu")
    tests = [f"tests/{each}" for each in SUBSET]
    run(scripts / "python", "-m", "pytest", "-q", "-n", "auto", "-o", "filterwarnings=default", *tests)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
