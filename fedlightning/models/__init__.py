"""Networks of the papers and benchmarks."""

from fedlightning.core.per_architecture import PerArchitecture
from fedlightning.models.augmentation import RandomCropFlip
from fedlightning.models.causal_lm import CausalLM
from fedlightning.models.classifiers import CNN, MLP, LeNet5, LogisticRegression, ThreeLayerCNN
from fedlightning.models.conditional_policy import ConditionalPolicy, head_context
from fedlightning.models.dcgan import DCGANDiscriminator, DCGANGenerator
from fedlightning.models.extractors import DigitFeatures, MobileNetV2Features
from fedlightning.models.personalized import (
    AttentionPooling,
    AudioVideoNet,
    Chain,
    HARNet,
    ImageTextNet,
    PersonalMLP,
    ResNet18,
    SensorStream,
    TwoLayerCNN,
)
from fedlightning.models.two_heads import PolicyHeads, SummedHeads

__all__ = [
    "CNN",
    "MLP",
    "AttentionPooling",
    "AudioVideoNet",
    "CausalLM",
    "Chain",
    "ConditionalPolicy",
    "DCGANDiscriminator",
    "DCGANGenerator",
    "DigitFeatures",
    "HARNet",
    "ImageTextNet",
    "LeNet5",
    "LogisticRegression",
    "MobileNetV2Features",
    "PerArchitecture",
    "PersonalMLP",
    "PolicyHeads",
    "RandomCropFlip",
    "ResNet18",
    "SensorStream",
    "SummedHeads",
    "ThreeLayerCNN",
    "TwoLayerCNN",
    "head_context",
]
