"""Networks of the papers and benchmarks."""

from fedlightning.models.classifiers import CNN, MLP, LeNet5, LogisticRegression, ThreeLayerCNN
from fedlightning.models.dcgan import DCGANDiscriminator, DCGANGenerator
from fedlightning.models.extractors import DigitFeatures, MobileNetV2Features
from fedlightning.models.personalized import AttentionPooling, HARNet, PersonalMLP, SensorStream, TwoLayerCNN

__all__ = [
    "CNN",
    "MLP",
    "AttentionPooling",
    "DCGANDiscriminator",
    "DCGANGenerator",
    "DigitFeatures",
    "HARNet",
    "LeNet5",
    "LogisticRegression",
    "MobileNetV2Features",
    "PersonalMLP",
    "SensorStream",
    "ThreeLayerCNN",
    "TwoLayerCNN",
]
