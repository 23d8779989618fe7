"""Networks of the papers and benchmarks."""

from fedlightning.models.classifiers import CNN, LeNet5, LogisticRegression, ThreeLayerCNN
from fedlightning.models.extractors import DigitFeatures, MobileNetV2Features

__all__ = ["CNN", "DigitFeatures", "LeNet5", "LogisticRegression", "MobileNetV2Features", "ThreeLayerCNN"]
