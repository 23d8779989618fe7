"""Generative adversarial networks over clients (Goodfellow et al., 2014; Xie et al., CDMA, AAAI 2023, Section 5.3).

min over generator G, max over discriminator D:  E log D(image) + E log(1 - D(G(noise)))
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require_argument
from fedlightning.models.dcgan import DCGANDiscriminator, DCGANGenerator
from fedlightning.plotting.pictures import image_grid
from fedlightning.tasks.base import FederatedLightningModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Batch = tuple[Tensor, ...]


class GAN(FederatedLightningModule):
    """Trains any generator against any discriminator; images are the first entry of a sample, in [-1, 1]."""

    max_parameters = ("discriminator",)

    def __init__(
        self,
        algorithm: Algorithm,
        generator: nn.Module | None = None,
        discriminator: nn.Module | None = None,
        latent: int | None = None,
        non_saturating: bool = False,
        classifier: nn.Module | None = None,
        classifier_weights: str | None = None,
        features: nn.Module | None = None,
        samples: int = 1000,
        **federation: Any,
    ) -> None:
        """Store the networks, or build the default ones, and set up the scores.

        Args:
            algorithm: What clients and server do.
            generator: Maps noise ``[B, latent]`` to images; null for :class:`DCGANGenerator` at 28 x 28 grey pixels.
            discriminator: Maps images to logits ``[B, 1]``; null for :class:`DCGANDiscriminator`.
            latent: Length of a noise vector, U[-1, 1] in every element; null to read it from ``generator.latent``.
            non_saturating: The generator maximises log D(G(noise)) instead of minimising log(1 - D(G(noise))): another
                operator with the same fixed points, no longer that of one function.
            classifier: Network of logits for the Inception Score, trained on the data set; null for no score.
            classifier_weights: Checkpoint of a :class:`Classification` task, or a state dict, for it.
            features: Maps images to features ``[B, F]`` for the Frechet distance to the evaluation data; null for none.
            samples: Images generated for the scores at every validation.
            federation: Arguments of :class:`FederatedLightningModule`.

        Raises:
            ValueError: If the latent dimension is neither given nor known, or weights come without a classifier.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self.generator = DCGANGenerator() if generator is None else generator
        self.discriminator = DCGANDiscriminator() if discriminator is None else discriminator
        length = getattr(self.generator, "latent", None) if latent is None else latent
        if not isinstance(length, int):
            raise InvalidValueError(
                f"{type(self.generator).__name__} has no attribute latent: give latent, the noise's length."
            )
        if classifier_weights is not None and classifier is None:
            raise InvalidValueError(
                f"GAN(classifier_weights={classifier_weights!r}): give the classifier they are for."
            )
        require_argument(self, "latent", length, at_least=1, whole=True)
        require_argument(self, "samples", samples, at_least=1, whole=True)
        self.latent, self.non_saturating, self.samples = length, non_saturating, samples
        self.inception = None if classifier is None else _inception_score(_frozen(classifier, classifier_weights))
        self.fid = None if features is None else self._frechet_distance(_frozen(features, None))

    def noise(self, count: int) -> Tensor:
        """Draw noise ``[count, latent]`` from U[-1, 1]."""
        like = next(self.generator.parameters())
        return torch.rand(count, self.latent, dtype=like.dtype, device=like.device) * 2 - 1

    def forward(self, noise: Tensor) -> Tensor:
        """Return the images generated from noise."""
        return self.generator(noise)  # type: ignore[no-any-return]

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean of log D(image) + log(1 - D(G(noise))); the discriminator gives the logits of D."""
        real = batch[0]
        fake = self(self.noise(len(real)))
        on_real = F.logsigmoid(self.discriminator(real)).mean()
        if not self.non_saturating:
            on_fake = F.logsigmoid(-self.discriminator(fake)).mean()
            return {"loss": on_real + on_fake, "on_real": on_real, "on_fake": on_fake}
        on_fake = F.logsigmoid(-self.discriminator(fake.detach())).mean()
        held = {name: p.detach() for name, p in self.discriminator.named_parameters()}
        fooled = F.logsigmoid(functional_call(self.discriminator, held, (fake,))).mean()
        return {"loss": on_real + on_fake - fooled, "on_real": on_real, "on_fake": on_fake}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log how the discriminator judges real images, and collect their features for the Frechet distance."""
        judged = self.discriminator(batch[0]).sigmoid()
        self.log("val_real", judged.mean(), batch_size=len(judged))
        if self.fid is not None:
            self.fid.update(batch[0], real=True)

    def on_validation_epoch_end(self) -> None:
        """Log scores of generated images, from the same noise every time."""
        images = self.sample(self.samples)
        self.log("val_fake", self.discriminator(images).sigmoid().mean(), prog_bar=True)
        if self.inception is not None:
            self.inception.update(images)
            with torch.random.fork_rng(devices=[]):  # it divides the images at random
                torch.default_generator.manual_seed(0)
                self.log("val_inception_score", self.inception.compute()[0], prog_bar=True)
            self.inception.reset()
        if self.fid is not None:
            self.fid.update(images, real=False)
            self.log("val_fid", self.fid.compute(), prog_bar=True)
            self.fid.reset()
        super().on_validation_epoch_end()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log how the discriminator judges real images."""
        judged = self.discriminator(batch[0]).sigmoid()
        self.log("test_real", judged.mean(), batch_size=len(judged))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Generate as many images as the batch has samples."""
        return self(self.noise(len(batch[0])))  # type: ignore[no-any-return]

    def sample(self, count: int, seed: int = 0) -> Tensor:
        """Generate images from noise that depends on the seed alone."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            parts = self.noise(count).split(250)
        with torch.no_grad():
            return torch.cat([self(part) for part in parts])

    def pictures(self) -> dict[str, Figure]:
        """Draw a grid of generated images, from the same noise every time."""
        return {"samples": image_grid(self.sample(64))}

    def _frechet_distance(self, features: nn.Module) -> FrechetInceptionDistance:
        self.generator.eval()  # a batch of one has no statistics
        with torch.no_grad():
            shape = self(self.noise(1)).shape[1:]
        self.generator.train()
        return FrechetInceptionDistance(features, normalize=True, input_img_size=tuple(shape))


def _inception_score(classifier: nn.Module) -> InceptionScore:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Metric `InceptionScore` will save all extracted features")
        return InceptionScore(classifier)


def _frozen(network: nn.Module, weights: str | None) -> nn.Module:
    """Freeze a network that only judges images."""
    if weights is not None:
        stored = torch.load(weights, map_location="cpu", weights_only=True)
        stored = stored.get("state_dict", stored)
        own = {name.removeprefix("network."): value for name, value in stored.items()}
        network.load_state_dict({name: value for name, value in own.items() if name in network.state_dict()})
    return network.requires_grad_(False)
