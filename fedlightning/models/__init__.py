"""Networks of the papers and benchmarks."""

from fedlightning.models.classifiers import CNN, MLP, LeNet5, LogisticRegression, ThreeLayerCNN
from fedlightning.models.extractors import DigitFeatures, MobileNetV2Features

__all__ = ["CNN", "MLP", "DigitFeatures", "LeNet5", "LogisticRegression", "MobileNetV2Features", "ThreeLayerCNN"]
