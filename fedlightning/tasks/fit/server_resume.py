"""What a resumed run takes over of the optimizer of its server.

A checkpoint's hyper-parameters would take the place of those that are given now, in silence. An optimizer therefore
notes in its groups, which checkpoints hold, what it was made with. What is given otherwise now acts from the next round
on, and one line says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from lightning.pytorch.utilities import rank_zero_info
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.resume import START_ANEW

_GIVEN, _SCHEDULE = "as_given", "schedule_as_given"
_NO_HYPER_PARAMETERS = ("params", "param_names", _GIVEN, _SCHEDULE)
_NUMBERS = (int, float, tuple, list)
_Groups = Sequence[Mapping[str, Any]]


def note_given(optimizer: Optimizer) -> None:
    """Have an optimizer note what it was made with, and go by that when it is restored; before it has a schedule."""
    for group in optimizer.param_groups:
        group[_GIVEN] = {"class": type(optimizer).__name__, **_values(group, ())}
        group[_SCHEDULE] = None
    optimizer.register_load_state_dict_pre_hook(_resumed)


def note_schedule(optimizer: Optimizer, scheduler: LRScheduler) -> None:
    """Have an optimizer note which schedule it has, at the start of that."""
    for group in optimizer.param_groups:
        group[_SCHEDULE] = {"class": type(scheduler).__name__, **_plain(scheduler.state_dict())}


def changed_by_hand(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the hyper-parameters that an optimizer without a schedule was not made with, by name."""
    for group in optimizer.param_groups:
        for name, value in group[_GIVEN].items():
            if name != "class" and group[name] != value:
                yield name, group[name]


def _resumed(optimizer: Optimizer, stored: dict[str, Any]) -> dict[str, Any] | None:
    """Return what an optimizer is restored from: the checkpoint's, but for what is given otherwise now.

    Raises:
        ValueError: If the schedule is another one, whose state would take the place of what is given now.
    """
    own = optimizer.state_dict()
    groups: _Groups = own["param_groups"]
    before: _Groups = stored["param_groups"]
    if [len(group["params"]) for group in before] != [len(group["params"]) for group in groups]:
        return own  # the server's state is refused with the names of the parameters
    if any(_GIVEN not in group for group in before):
        return None  # of a version that noted nothing
    pairs = [*zip(before, groups, strict=True)]
    same_schedule = _require_schedule(before[0], groups[0])
    changed = {name: each for then, now in pairs for name, each in _differing(then[_GIVEN], now[_GIVEN]).items()}
    keeps_state = all(_are_alike(*each) for each in changed.values())
    if changed or not same_schedule:
        was, is_now = (", ".join(f"{name}={each[k]}" for name, each in changed.items()) for k in (0, 1))
        what = f"the server optimizer's {is_now} in place of {was}" if changed else "another schedule at the server"
        rank_zero_info(f"resumed with {what}{'' if keeps_state else ': its state begins anew'}.")
    if same_schedule and "class" not in changed:
        left_out = {*changed, "initial_lr"} if "lr" in changed else {*changed}
        groups = [{**now, **_values(then, left_out)} for then, now in pairs]
    return {**own, "state": stored["state"] if keeps_state else own["state"], "param_groups": groups}


def _require_schedule(before: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    """Return whether schedules are the same, or none; refuse one in place of another one."""
    then, now = before[_SCHEDULE], group[_SCHEDULE]
    if then is None or now is None:
        return then is now
    for name, (was, is_now) in _differing(then, now).items():
        _refuse(f"{then['class']} with {name}={was}", f"{now['class']} with {name}={is_now}")
    if before[_GIVEN]["class"] != group[_GIVEN]["class"]:
        _refuse(*(f"a schedule of {each[_GIVEN]['class']}" for each in (before, group)))
    return True


def _refuse(then: str, now: str) -> NoReturn:
    raise InvalidValueError(
        f"The checkpoint was trained with server_scheduler {then}, this run has {now}, and would begin in its middle. "
        f"Resume with the same server_scheduler and server_optimizer, without the former, or {START_ANEW}."
    )


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ by name; those of another class's are its name alone."""
    if then["class"] != now["class"]:
        return {"class": (then["class"], now["class"])}
    return {name: (then.get(name), now.get(name)) for name in {**then, **now} if then.get(name) != now.get(name)}


def _are_alike(then: Any, now: Any) -> bool:
    """Return whether an optimizer's state serves with both values: a momentum of 0, say, has left none."""
    return isinstance(then, _NUMBERS) and isinstance(now, _NUMBERS) and bool(then) == bool(now)


def _values(group: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """Return the hyper-parameters of a group but those left out."""
    return {name: value for name, value in group.items() if name not in (*_NO_HYPER_PARAMETERS, *left_out)}


def _plain(value: Any) -> Any:
    """Return the numbers, texts and None of a state, in their places; None for everything else."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, int | float | str) else None
