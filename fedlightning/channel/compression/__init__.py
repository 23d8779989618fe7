"""Compressors of updates, and sums of whole numbers."""

from fedlightning.channel.compression.compressor import Compressed, Compressor
from fedlightning.channel.compression.draws import Draws
from fedlightning.channel.compression.error_feedback import ErrorFeedback
from fedlightning.channel.compression.fixed_point import FixedPoint
from fedlightning.channel.compression.natural import NaturalCompression
from fedlightning.channel.compression.qsgd import QSGD
from fedlightning.channel.compression.rand_k import RandK
from fedlightning.channel.compression.sign import SignCompression
from fedlightning.channel.compression.top_k import TopK

__all__ = [
    "QSGD",
    "Compressed",
    "Compressor",
    "Draws",
    "ErrorFeedback",
    "FixedPoint",
    "NaturalCompression",
    "RandK",
    "SignCompression",
    "TopK",
]
