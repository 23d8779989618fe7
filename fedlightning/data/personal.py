"""Data sets in which every client has training, validation and test samples of its own. A sample is (input, label)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require, require_instance
from fedlightning.data.feature_skew import FeatureSkew, require_skew
from fedlightning.data.federation import Federation
from fedlightning.data.images import ScalePixels, digits_images
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.partition import Partition
from fedlightning.data.partitioners import IID, ByGroup, Dirichlet, Partitioner
from fedlightning.data.pictures import (
    Reader,
    read_cifar10,
    read_cifar100,
    read_fashion_mnist,
    read_mnist,
    read_tiny_imagenet,
)
from fedlightning.data.poisoning import LabelFlip
from fedlightning.data.sensors import halves_shared, ku_har_folders, read_hapt, read_ku_har, read_uci_har
from fedlightning.data.tensors import TensorData


class PersonalData(FederatedDataModule):
    """Splits all samples among clients, then each client's into training, validation and test (base class).

    Every sample belongs to one client and to one of the three, so nothing leaks from one client's test data into
    another's training data. By default 20 % are for testing, and of the other 80 % a tenth for validation: 72 % train.
    Samples that share readings are set aside in stretches that share none, see :meth:`overlaps`.

    Attributes:
        classes: Number C of classes; None where only the labels tell.
    """

    classes: int | None = None

    def __init__(
        self,
        partitioner: Partitioner,
        test_share: float = 0.2,
        val_share: float = 0.1,
        class_counts: bool = False,
        **options: Any,
    ) -> None:
        """Set how samples are split among clients and into training, validation and test.

        Args:
            partitioner: Splits all samples among clients, by label or person.
            test_share: Part of every client's samples to test on.
            val_share: Part of every client's other samples to validate on; 0 validates on the test samples, as tables
                do that choose the best round on them.
            class_counts: Whether a sample is (input, label, counts), with the numbers ``[C]`` of its client's training
                samples by class, as :class:`~fedlightning.tasks.FedRoD` needs them. C is ``classes``, or one more than
                the largest label of all clients.
            options: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(**options)
        self.partitioner = partitioner
        self.test_share = test_share
        self.val_share = val_share
        require(self, "test_share", above=0.0, below=1.0)
        require(self, "val_share", at_least=0.0, below=1.0)
        require_instance(f"{type(self).__name__}(partitioner", partitioner, Partitioner, "Dirichlet(20, 0.1)")
        self.class_counts = class_counts
        if class_counts and isinstance(self.poisoning, LabelFlip):
            raise InvalidValueError(
                f"{type(self).__name__}(class_counts=True, poisoning={self.poisoning}): the counts that come with the "
                "samples would be those of the true labels. Leave one of the two out."
            )

    @abstractmethod
    def samples(self) -> tuple[TensorData, Tensor]:
        """Return all samples, and the column ``[n]`` by which the partitioner splits."""

    def change(self, data: TensorData, partition: Partition) -> TensorData:
        """Return the samples as their clients see them; unchanged by default."""
        return data

    def overlaps(self, data: TensorData, column: Tensor) -> Tensor | None:
        """Return whether each sample shares readings with the next, ``[n - 1]``; None (default) if none does.

        Clients' samples are then set aside by :meth:`Partition.hold_out_stretches`, not at random.

        Args:
            data: All samples, as :meth:`samples` gives them.
            column: The column clients are made by.
        """
        return None

    def build(self) -> Federation:
        """Split the samples among clients, then split each client's samples."""
        samples, column = self.samples()
        parts = self.partitioner.parts(column, self.seed)
        overlaps = self.overlaps(samples, column)

        def hold_out(part: Partition, share: float, number: int) -> tuple[Partition, Partition]:
            seed = derive_seed(self.seed, number)
            if overlaps is None:
                return part.hold_out(share, seed)
            return part.hold_out_stretches(share, seed, samples.tensors[1], overlaps)

        rest, test = hold_out(parts.train, self.test_share, 1) if parts.test is None else (parts.train, parts.test)
        train, val = (rest, parts.val or test)
        if parts.val is None and self.val_share:
            train, val = hold_out(rest, self.val_share, 2)
        data = self.change(samples, parts.whole)
        if self.class_counts:
            data = self._with_counts(data, parts.whole, train)
        return Federation(data, train, val=data, test=data, val_partition=val, test_partition=test)

    def _with_counts(self, data: TensorData, partition: Partition, train: Partition) -> TensorData:
        """Return every sample with the class counts of the client's training samples."""
        x, labels = data.tensors
        counts = torch.zeros(len(labels), max(self.classes or 0, int(labels.max()) + 1))
        for own, trained in zip(partition, train, strict=True):
            counts[own] = torch.bincount(labels[trained], minlength=counts.shape[1]).float()
        return TensorData((x, labels, counts), data.transform)


class PersonalDigits(PersonalData):
    """Distributes scikit-learn's 8 x 8 digits as tasks that differ between clients; nothing is downloaded.

    Clients agree on what a digit looks like, but each names the digits by a permutation of its own (personal upper
    layers learn it, one model for all cannot), or sees them rotated by a multiple of 90 degrees of its own.
    """

    classes = 10

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        permute_labels: bool = True,
        rotate: bool = False,
        scaling: ScalePixels | None = None,
        **options: Any,
    ) -> None:
        """Set the partitioner and how the clients' tasks differ.

        Args:
            partitioner: Splits the 1,797 images by label; null for 20 clients IID.
            permute_labels: Whether every client names the digits in its own way.
            rotate: Whether client i sees the digits turned by 90 degrees i times.
            scaling: Range of the pixels; null for [-1, 1].
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(IID(20) if partitioner is None else partitioner, **options)
        self.permute_labels = permute_labels
        self.rotate = rotate
        self.scaling = ScalePixels() if scaling is None else scaling

    def samples(self) -> tuple[TensorData, Tensor]:
        """Return images with labels, and the labels."""
        images, labels = digits_images(8)
        return TensorData((images.unsqueeze(1), labels), self.scaling), labels

    def change(self, data: TensorData, partition: Partition) -> TensorData:
        """Permute the labels and rotate the images of each client."""
        images, labels = (tensor.clone() for tensor in data.tensors)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 3))
        for client, part in enumerate(partition):
            if self.permute_labels:
                labels[part] = torch.randperm(10, generator=generator)[labels[part]]
            if self.rotate:
                images[part] = images[part].rot90(client, (-2, -1))
        return TensorData((images, labels), data.transform)


class PersonalPictures(PersonalData):
    """Pools both official parts of a picture data set, then gives each client few classes (base class).

    FedAPM shares CIFAR-10 out to 20 clients by Dirichlet draws, 80 % of a client's pictures to train and 20 % to test
    on. It gives no concentration, alpha = 0.5 is our choice, and does not say what it validates on: here a tenth of the
    80 %, so that 72 % train.
    """

    read: ClassVar[Reader]

    def __init__(
        self,
        root: str,
        partitioner: Partitioner | None = None,
        scaling: ScalePixels | None = None,
        cache: str | None = None,
        download: bool = False,
        feature_skew: FeatureSkew | None = None,
        **options: Any,
    ) -> None:
        """Set the folder, the partitioner and the range of the pixels.

        Args:
            root: Where the files lie, as the class of the same name without ``Personal`` says.
            partitioner: Splits the images by label; null for 20 clients by Dirichlet draws with alpha 0.5, our choice.
            scaling: Range of the pixels; null for [-1, 1].
            cache: Folder for decoded pictures, where the files hold encoded ones; null decodes them every time.
            download: Fetch the files into ``root`` if they are missing.
            feature_skew: How the images of every client differ; null if they do not.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(Dirichlet(20, 0.5, min_size=50) if partitioner is None else partitioner, **options)
        self.root = root
        self.scaling = ScalePixels() if scaling is None else scaling
        self.cache = cache
        self.download = download
        self.feature_skew = feature_skew
        require_skew(self, feature_skew)

    def samples(self) -> tuple[TensorData, Tensor]:
        """Return the images of both official parts with labels, and the labels."""
        images, labels, test_images, test_labels = self.read(self.root, self.cache, self.download)
        labels = torch.cat([labels, test_labels])
        return TensorData((torch.cat([images, test_images]), labels), self.scaling), labels

    def change(self, data: TensorData, partition: Partition) -> TensorData:
        """Return the images as their clients see them."""
        return data if self.feature_skew is None else self.feature_skew.seen(data, partition, derive_seed(self.seed, 4))


class PersonalMNIST(PersonalPictures):
    """Distributes all 70,000 images of :class:`~fedlightning.data.MNIST`, with test data for each client."""

    classes = 10
    read = staticmethod(read_mnist)


class PersonalFashionMNIST(PersonalPictures):
    """Distributes all 70,000 images of :class:`~fedlightning.data.FashionMNIST`, with test data for each client."""

    classes = 10
    read = staticmethod(read_fashion_mnist)


class PersonalCIFAR10(PersonalPictures):
    """Distributes all 60,000 images of :class:`~fedlightning.data.CIFAR10`, with test data for each client."""

    classes = 10
    read = staticmethod(read_cifar10)


class PersonalCIFAR100(PersonalPictures):
    """Distributes all 60,000 images of :class:`~fedlightning.data.CIFAR100`, with test data for each client."""

    classes = 100
    read = staticmethod(read_cifar100)


class PersonalTinyImageNet(PersonalPictures):
    """Distributes all labelled images of :class:`~fedlightning.data.TinyImageNet`, with test data for each client."""

    classes = 200
    read = staticmethod(read_tiny_imagenet)


class HAPT(PersonalData):
    """Reads human activities from a phone's accelerometer and gyroscope, one client per person (UCI 341; 30 persons).

    A sample is a window ``[6, 128]`` of 2.56 s, three axes of acceleration (g) and three of rotation (rad/s), and its
    activity. Windows overlap by half, so no reading shall be in two of training, validation and test data: of every
    activity of a person, windows that follow each other in time are set aside, and those that overlap with them are
    dropped. That leaves 69 % to train, 8 % to validate and 20 % to test on. An activity of which a person has one or
    two windows only, as happens with transitions, is not set aside there.
    """

    def __init__(self, root: str, transitions: bool = False, **options: Any) -> None:
        """Set the file and whether postural transitions are kept.

        Args:
            root: An ``.npz`` of the raw recordings: ``acc``, ``gyro`` (whole sensor steps, ``[n, 3]``), ``offsets``,
                ``exp_user``, ``labels`` (recording, person, activity from 1, first and last reading from 1),
                ``acc_step_g``, ``gyro_step_rad_s``.
            transitions: Whether to keep the six rare postural transitions beside the six basic activities.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(ByGroup(), **options)
        self.root = root
        self.transitions = transitions
        self.classes = 12 if transitions else 6

    def samples(self) -> tuple[TensorData, Tensor]:
        """Return windows with activities, and persons."""
        windows, activity, person = read_hapt(Path(self.root))
        if not self.transitions:
            basic = activity < 6
            windows, activity, person = windows[basic], activity[basic], person[basic]
        return TensorData((windows, activity)), person

    def overlaps(self, data: TensorData, column: Tensor) -> Tensor:
        """Return whether each window's second half is the next window's first half."""
        return halves_shared(data.tensors[0])


class UCIHAR(PersonalData):
    """Reads UCI HAR's ready-made, filtered windows (UCI 240), one client per person; samples as in :class:`HAPT`.

    The files do not say which recording a window was cut from. Their rows stand in order of time within a person, so
    any two of a person that follow each other are taken to overlap, and windows are set aside as in :class:`HAPT`;
    somewhat more than need be are dropped. In files with their rows shuffled training and test data would overlap.
    """

    classes = 6

    def __init__(self, root: str, **options: Any) -> None:
        """Set the folder.

        Args:
            root: The unpacked ``UCI HAR Dataset`` folder with ``train/`` and ``test/``.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(ByGroup(), **options)
        self.root = root

    def samples(self) -> tuple[TensorData, Tensor]:
        """Return windows of both official parts with activities, and persons."""
        windows, activity, person = read_uci_har(Path(self.root))
        return TensorData((windows, activity)), person

    def overlaps(self, data: TensorData, column: Tensor) -> Tensor:
        """Return whether each window and the next are of one person."""
        return column[:-1] == column[1:]


class KUHAR(PersonalData):
    """Reads KU-HAR (Sikder and Nahid, 2021), one client per person: up to 18 activities, windows as in :class:`HAPT`.

    Windows do not overlap, at 50 readings a second. FedAPM takes six activities and jumping and running, presumably
    Stand, Sit, Lay, Walk, Stair-up, Stair-down, Jump and Run.
    """

    def __init__(
        self,
        root: str,
        activities: Sequence[str] | None = None,
        standardize: bool = True,
        min_windows: int = 10,
        **options: Any,
    ) -> None:
        """Set the folder and the activities to keep.

        Args:
            root: The unpacked ``2.Trimmed_interpolated_data``, with a folder an activity (``0.Stand``, ...) and files
                ``<person>_<...>.csv`` in them.
            activities: Names of the activities to keep; null for all.
            standardize: Whether every axis of a window is shifted and scaled to mean 0 and deviation 1, as in
                FedMultimodal (Feng et al., KDD 2023); else m/s^2 and rad/s.
            min_windows: Persons with fewer windows are left out.
            options: Arguments of :class:`PersonalData` and :class:`FederatedDataModule`.
        """
        super().__init__(ByGroup(), **options)
        self.root = root
        self.activities = activities
        self.standardize = standardize
        self.min_windows = min_windows

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Return the number of activities to keep."""
        return len(ku_har_folders(Path(self.root), self.activities))

    def samples(self) -> tuple[TensorData, Tensor]:
        """Return windows with activities, and persons.

        Raises:
            ValueError: If no person has ``min_windows`` windows.
        """
        windows, activity, person = read_ku_har(Path(self.root), self.activities)
        count = torch.bincount(person)
        if count.max() < self.min_windows:
            raise InvalidValueError(
                f"min_windows={self.min_windows}: the person with most windows has {int(count.max())}. Lower "
                "min_windows, or keep more activities."
            )
        enough = count[person] >= self.min_windows
        windows, activity, person = windows[enough], activity[enough], person[enough]
        if self.standardize:
            deviation, mean = torch.std_mean(windows, dim=2, correction=0, keepdim=True)
            windows = (windows - mean) / (deviation + 1e-5)
        return TensorData((windows, activity)), person
