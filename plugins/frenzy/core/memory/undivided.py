"""The points in time of a step whose states nobody divides: torch's own optimizer on each rank.

Read from torch 2.13: optim/adamw.py, and nn/parallel/distributed.py, whose buckets hold the gradients once more;
Accelerate puts it around the model of a single rank, too (accelerator.py, prepare_model). What is trained is kept in
fp32, its gradients and states too, as ``transformers.Trainer`` and PEFT do; products are computed in 16 bits. Symbols
as in ``memory``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frenzy.core.memory.host_offload import STATES_EQUATION, optimizer_state_bytes
from frenzy.core.memory.model_inputs import Array
from frenzy.core.memory.moments import kept_terms
from frenzy.core.memory.table import Moment, Term
from frenzy.core.memory.training_step import Step
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.units import MIB

_ELEMENT_BYTES: Final = 4.0
# Of a process on a virtual GPU: gloo's threads, what a Trainer loads and starts for its first step, and MKL's packed
# copies of matrices. Measured by tests/trainer/test_task_memory.py (transformers 5.23, accelerate 1.15): 56 to 68 MiB
# on AMD's processors, 60 to 82 MiB on Intel's, where MKL packs more and no setting of a useful speed stops it. The
# middle is between their means.
_ON_VIRTUAL_BYTES: Final = 67 * MIB
# For each element that is updated at once: AdamW's root; on a CPU the quotient too; bitsandbytes' unpacked moments.
_ROOT_BYTES: Final = 4.0
_ON_CPU_BYTES: Final = {"adamw": 8.0, "adamw-8bit": 20.0}


def undivided_terms(step: Step) -> tuple[Term, ...]:
    """What a rank holds all the time from the first optimizer step on, but for what lies outside tensors."""
    trained, num_plans = step.states.trained, len(step.grid)
    reference = step.workload.weight_bytes * float(step.workload.shape.num_parameters)
    is_apart = step.workload.task.has_reference and step.workload.trained.is_everything
    return (
        Term("weights", "4*T; frozen ones as they are stored", _ELEMENT_BYTES * trained + step.frozen_bytes),
        Term("optimizer states", STATES_EQUATION, optimizer_state_bytes(step.workload, trained)),
        Term("reference model", "w*N, frozen", np.full(num_plans, reference if is_apart else 0.0)),
        Term("buckets of gradients", "4*T", _ELEMENT_BYTES * trained),
        Term(
            "process group and late libraries",
            "on a virtual GPU: measured",
            np.full(num_plans, float(_ON_VIRTUAL_BYTES if step.workload.kind is DeviceKind.VIRTUAL else 0)),
        ),
    )


def undivided_moments(step: Step) -> tuple[Moment, ...]:
    """The loss, the first and the last layer that go backward, the embedding's gradient, the update."""
    states = step.states
    all_of_them, table = _ELEMENT_BYTES * states.trained, np.minimum(states.table_gradients, states.table)
    of_layers = _ELEMENT_BYTES * (states.trained - table)
    passing = np.where(step.grid.accumulation > 1, _ELEMENT_BYTES * states.last_gradient, 0.0)
    head = _ELEMENT_BYTES * (states.head_gradient + states.tied_gradient + states.last_gradient)
    last = step.workload.shape.num_layers - 1
    # tied weights: the head's gradient is there when the embedding's is made
    both = np.where((step.grid.accumulation > 1) | (states.tied_gradient > 0), table, 0.0)
    return (
        Moment("loss", (*step.resident, _earlier(step, 0.0), *kept_terms(step), _in_loss(step))),
        Moment(
            "first backward layer",
            (*step.resident, _earlier(step, head), *kept_terms(step), _in_layer(step)),
        ),
        Moment(
            "later backward layer",
            (*step.resident, _earlier(step, of_layers, passing), *kept_terms(step, last), _in_layer(step)),
        ),
        Moment(
            "end of the backward pass",
            (*step.resident, Term("gradients", "4*T, and 4*V*h", all_of_them + _ELEMENT_BYTES * both)),
        ),
        Moment(
            "optimizer step",
            (
                *step.resident,
                Term("gradients", "4*T", all_of_them),
                Term("temporaries of the optimizer step", "AdamW on a card: 4*T", _temporary(step)),
            ),
        ),
    )


def _earlier(step: Step, made: Array | float, passing: Array | float = 0.0) -> Term:
    """Gradients: all of them after a first micro-batch, else those made by now; one more is being added."""
    held = np.where(step.grid.accumulation > 1, _ELEMENT_BYTES * step.states.trained, made)
    return Term("gradients", "4*(those made by now), or 4*T of earlier micro-batches", held + passing)


def _in_loss(step: Step) -> Term:
    return Term("gradient of the loss", "t*V*(logits' gradients), or one tile and 4*V*h", step.activations.in_loss)


def _in_layer(step: Step) -> Term:
    held = step.activations.in_backward + step.activations.masks.in_backward
    return Term("backward pass of one layer", "t*(gradients, and what is recomputed)", held)


def _temporary(step: Step) -> Array:
    """On a card all tensors are updated at once (``foreach``), on a CPU one after the other."""
    optimizer = step.workload.optimizer
    if step.workload.kind is DeviceKind.VIRTUAL:
        return _ON_CPU_BYTES.get(optimizer, 0.0) * step.states.largest_tensor
    return np.asarray(_ROOT_BYTES * step.states.trained * (optimizer == "adamw"), dtype=np.float64)
