"""What the server remembers of clients: rounds taken back, checkpoints gone back to."""

from __future__ import annotations

from fedlightning.federation.remote.generation import Generation
from fedlightning.federation.remote.ledger import Ledger


def generation(index, phase=0):
    return Generation(index, phase, f"{index:032x}")


def test_a_client_stands_where_its_last_accepted_answer_left_it():
    ledger = Ledger()
    assert ledger.standing(3).base is None
    ledger.begin_round(0)
    ledger.accept({3: generation(0)})
    assert (ledger.standing(3).base, ledger.standing(4).base) == (generation(0), None)


def test_a_round_that_came_to_nothing_is_taken_back_with_its_phases():
    ledger = Ledger()
    ledger.begin_round(0)
    ledger.accept({3: generation(0)})
    ledger.begin_round(1)
    ledger.accept({3: generation(1)})
    ledger.begin_round(1)  # its second phase
    assert ledger.standing(3).kept == (generation(0),)  # until the round is over
    ledger.undo(1)
    assert ledger.standing(3).base == generation(0)
    ledger.undo(1)
    ledger.undo(0)
    assert ledger.standing(3).base == generation(0)


def test_nodes_keep_what_the_last_two_checkpoints_go_back_to():
    ledger = Ledger()
    stored = []
    for index in range(5):
        ledger.begin_round(index)
        ledger.accept({3: generation(index)})
        stored.append(ledger.checkpoint())
        assert ledger.checkpoint() == stored[-1]  # a second file
    ledger.begin_round(5)
    ledger.accept({3: generation(5)})
    assert ledger.standing(3).kept == (generation(4), generation(3))
    later = Ledger()
    assert later.federation != ledger.federation
    later.resume(stored[2])
    assert later.federation == ledger.federation
    assert (later.standing(3).base, later.standing(3).kept) == (generation(2), ())
    later.begin_round(3)
    later.accept({3: generation(3)})
    assert later.standing(3).kept == (generation(2),)
