"""How minibatches are dealt."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import Phase
from fedlightning.data import RoundLoader, TensorData
from fedlightning.federation.cohort import Cohort
from fedlightning.federation.minibatches import draw_minibatches
from fedlightning.participation import FirstResponders, Full, Uniform

CPU = torch.device("cpu")


def test_an_epoch_meets_every_sample_once():
    index = draw_minibatches(torch.arange(100, 130), batch_size=10, steps=3, seed=4)
    assert index.shape == (3, 10)
    assert index.flatten().sort().values.tolist() == list(range(100, 130))


def test_epochs_reshuffle_and_short_minibatches_are_filled():
    index = draw_minibatches(torch.arange(7), batch_size=3, steps=5, seed=4)
    assert index.shape == (5, 3)
    flat = index.flatten()
    assert flat[:7].sort().values.tolist() == flat[7:14].sort().values.tolist() == list(range(7))
    assert flat[:7].tolist() != flat[7:14].tolist()


def test_steps_and_full_batches():
    assert draw_minibatches(torch.arange(7), 3, steps=9, seed=0).shape == (9, 3)
    assert draw_minibatches(torch.arange(7), None, steps=2, seed=0).tolist() == [list(range(7))] * 2
    assert draw_minibatches(torch.arange(7), None, steps=3, seed=0).shape == (3, 7)
    tiny = draw_minibatches(torch.arange(2), 4, steps=1, seed=0)
    assert tiny.flatten().bincount().tolist() == [2, 2]


class Slow(Dataset):
    """The same samples, one at a time."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return {"x": self.tensors[0][index], "y": self.tensors[1][index]}


def federation(slow=False, **options):
    sizes = [12, 5, 9, 20]
    sets = [(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.arange(n) + 100 * n) for n in sizes]
    made = [Slow(t) if slow else TensorData({"x": t[0], "y": t[1]}) for t in sets]
    return FederatedDataModule.from_datasets(
        made, **{"batch_size": 4, "local_steps": None, "local_epochs": 1, "rounds_per_epoch": 3, "seed": 2, **options}
    )


def everything(data, chunk, phases=None):
    loader = RoundLoader(data) if phases is None else RoundLoader(data, phases)
    seen = []
    for batch in loader:
        for cohort in batch.place(CPU, torch.float64).cohorts:
            for part in cohort.chunks(chunk):
                for minibatch in part.minibatches():
                    active = minibatch.active
                    for place, client in enumerate(part.ids):
                        if active is None or active[place]:
                            seen.append((batch.index, client, minibatch.data["y"][place].tolist()))
    return sorted(seen)


def test_loaded_and_gathered_data_are_dealt_alike():
    gathered = everything(federation(), 4)
    assert gathered == everything(federation(slow=True), 4)
    assert gathered == everything(federation(slow=True, num_workers=1), 4)


def test_chunks_deal_the_same_minibatches():
    assert everything(federation(), 4) == everything(federation(), 1) == everything(federation(), 3)
    assert everything(federation(slow=True), 2) == everything(federation(), 4)


def test_minibatches_do_not_depend_on_who_else_is_there():
    whole = everything(federation(), 4)
    part = everything(federation(participation=Uniform(2)), 4)
    assert set(map(str, part)) < set(map(str, whole))


def test_floats_arrive_in_the_parameters_dtype():
    for slow in (False, True):
        batch = next(iter(RoundLoader(federation(slow=slow)))).place(CPU, torch.float64)
        minibatch = next(next(batch.cohorts[0].chunks(4)).minibatches())
        assert minibatch.data["x"].dtype == torch.float64
        assert minibatch.data["y"].dtype == torch.int64


def test_full_batches_part_clients_by_size():
    data = federation(batch_size=None, local_steps=2)
    batch = next(iter(RoundLoader(data))).place(CPU, torch.float32)
    widths = [[len(m.data["y"][0]) for m in chunk.minibatches()] for chunk in batch.cohorts[0].chunks(4)]
    assert widths == [[5, 5], [9, 9], [12, 12], [20, 20]]


def test_full_phase_gives_all_data_and_minibatch_phase_refuses():
    phases = (Phase(None, None, None, data="full"), Phase(None, None, None))
    for slow in (False, True):
        batch = next(iter(RoundLoader(federation(slow=slow), phases))).place(CPU, torch.float32)
        for chunk in batch.cohorts[0].chunks(4):
            ((rows, data),) = chunk.full()
            assert rows.tolist() == list(range(len(chunk)))
            assert data["y"].shape[1] == chunk.sizes[0]
        chunk = next(batch.cohorts[1].chunks(4))
        with pytest.raises(ValueError, match="data='full'"):
            next(chunk.full())


def test_a_phase_may_ask_for_fewer_minibatches():
    phases = (Phase(None, None, None, steps=1),)
    batch = next(iter(RoundLoader(federation(), phases)))
    assert {len(member.index) for member in batch.cohorts[0].members} == {1}


def test_phases_have_cohorts_of_their_own():
    phases = (Phase(None, None, None), Phase(None, None, None))
    data = federation(participation=Uniform(2), rounds_per_epoch=20)
    pairs = [tuple(tuple(d.id for d in c.members) for c in batch.cohorts) for batch in RoundLoader(data, phases)]
    assert any(first != second for first, second in pairs)


def test_preview_deals_again():
    for slow in (False, True):
        data = federation(slow=slow)
        batch = next(iter(RoundLoader(data))).place(CPU, torch.float32)
        cohort = batch.cohorts[0]
        looked = next(cohort.preview(2).minibatches()).data["y"]
        dealt = next(next(cohort.chunks(2)).minibatches()).data["y"]
        assert torch.equal(looked, dealt)


@pytest.mark.parametrize("slow", [False, True])
def test_two_clients_apart_are_dealt_again(slow):
    """Four clients; of samples that arrive one after the other only the first three are looked at."""
    pairs = [[0, 2], [1, 2], [0, 1], [0, 2]] if slow else [[0, 3], [1, 2], [0, 3], [1, 2]]
    for turn, ids in enumerate(pairs):
        cohort = next(iter(RoundLoader(federation(slow=slow)))).place(CPU, torch.float32).cohorts[0]
        chunk = cohort.apart(turn, among=3)
        assert chunk.ids == ids
        looked = next(chunk.minibatches()).data["y"]
        dealt = torch.cat([next(part.minibatches()).data["y"] for part in cohort.chunks(1)])
        assert torch.equal(looked, dealt[ids])


def test_processes_share_a_cohort():
    data = federation(participation=Uniform(3))
    whole = [[d.id for d in b.cohorts[0].members] for b in RoundLoader(data)]
    parts = [
        [[d.id for d in b.cohorts[0].members] for b in RoundLoader(data, rank=rank, world_size=2)] for rank in (0, 1)
    ]
    for all_ids, first, second in zip(whole, *parts, strict=True):
        assert sorted(first + second) == sorted(all_ids)
    few = (Uniform(1), FirstResponders(size=3, at_least=1))
    for rule in few:
        with pytest.raises(
            ValueError, match=r"\): a round may have 1 clients, too few for 2 processes. Let more take part"
        ):
            RoundLoader(federation(participation=rule), world_size=2)
    RoundLoader(federation(participation=FirstResponders(size=3, at_least=2)), world_size=2)

    class Shrinking(Full):
        def cohort(self, clients, seed, round_index, phase):
            return list(range(clients)) if round_index == 0 else [0] if round_index == 1 else []

    rounds = iter(RoundLoader(federation(participation=Shrinking()), world_size=2))
    next(rounds)
    with pytest.raises(ValueError, match=r"a round may have 1 clients, too few for 2 processes"):
        next(rounds)
    alone = [len(batch.cohorts[0]) for batch in RoundLoader(federation(participation=Shrinking()))]
    assert alone[1:3] == [1, 0]  # nobody at all is a round to be skipped


def test_wrong_settings_are_named():
    for wrong in ({"batch_size": 0}, {"local_steps": 0}, {"local_epochs": 0}, {"rounds_per_epoch": 0}):
        ((name, _),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name}=0"):
            federation(**wrong)


def test_tensor_datasets_of_pairs():
    data = FederatedDataModule.from_datasets([TensorDataset(torch.zeros(3, 2), torch.ones(3))], batch_size=2)
    batch = next(iter(RoundLoader(data)))
    minibatch = next(next(batch.cohorts[0].chunks(1)).minibatches())
    assert [t.shape for t in minibatch.data] == [(1, 2, 2), (1, 2)]


def test_evaluation_in_batches():
    val = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))
    data = FederatedDataModule.from_datasets(
        [val], val=val, test=Slow((torch.zeros(5, 1), torch.zeros(5))), eval_batch_size=4
    )
    assert [len(batch[0]) for batch in data.val_dataloader()] == [4, 4, 2]
    assert [len(batch["x"]) for batch in data.test_dataloader()] == [4, 1]


BOTH = (Phase(None, None, None, data="both", steps=6),)


def both(data, chunk):
    """Minibatches and whole data of every client, as a phase deals that wants both."""
    seen = []
    for batch in RoundLoader(data, BOTH):
        cohort = batch.place(CPU, torch.float64).cohorts[0]
        cohort.preview(2)  # must not use up anything
        for part in cohort.chunks(chunk):
            for k, minibatch in enumerate(part.minibatches()):
                assert minibatch.active is None
                for place, client in enumerate(part.ids):
                    seen.append((batch.index, client, k, minibatch.data["y"][place].tolist()))
            for places, whole in part.full():
                for row, place in enumerate(places.tolist()):
                    seen.append((batch.index, part.ids[place], -1, whole["y"][row].tolist()))
    return sorted(seen)


def test_a_phase_may_have_minibatches_and_all_data():
    seen = both(federation(), 4)
    assert len(seen) == 3 * 4 * 7
    for _, client, k, labels in seen:
        n = [12, 5, 9, 20][client]
        assert set(labels) <= {100 * n + i for i in range(n)}
        assert len(labels) == (n if k == -1 else 4)
        assert k != -1 or sorted(labels) == [100 * n + i for i in range(n)]


@pytest.mark.parametrize("chunk", [1, 3])
def test_both_kinds_of_data_do_not_depend_on_chunks_or_source(chunk):
    expected = both(federation(), 4)
    assert both(federation(), chunk) == expected
    assert both(federation(slow=True), chunk) == expected


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("seen", [everything, both])
def test_parts_of_a_chunk_have_its_samples(seen, slow, monkeypatch):
    expected, chunks = seen(federation(), 4), Cohort.chunks

    def in_parts(cohort, size):
        for chunk in chunks(cohort, size):
            for part in chunk.parts(3):
                assert len(part) <= 3
                yield from part.parts(2)

    monkeypatch.setattr(Cohort, "chunks", in_parts)
    assert seen(federation(slow=slow), 4) == expected
