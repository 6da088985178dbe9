"""What a run's history says of the releases in its script's environment, where a plan counts on others. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from frenzy.core.memory.model_trace import release_numbers
from frenzy.core.values.errors import Reason
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.workload import TRANSFORMERS_LIBRARY


def other_transformers(job: TrainingJob, found: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    """The release that was ``found`` of transformers, where predictions for ``job`` were made for another.

    own: the releases that predictions hold for. A newer one than that keeps no more, as far as is known.
    """
    release, workload = found.get(TRANSFORMERS_LIBRARY), job.workload
    if release is None or workload is None or not job.names_a_model:
        return None
    written = workload.transformers_release
    if written is not None:
        return release if release_numbers(written) != release_numbers(release) else None
    known = own.get(TRANSFORMERS_LIBRARY)
    return release if known is not None and release_numbers(release) < release_numbers(known) else None


def release_notice(
    job: TrainingJob, found: Mapping[str, str], own: Mapping[str, str], refusal: Reason | None
) -> str | None:
    """What to tell the user of ``found`` releases; None where predictions were made for them.

    refusal: why nothing can be predicted for the transformers that was found.
    """
    transformers = other_transformers(job, found, own)
    told = [
        None if transformers is None else _of_transformers(job, transformers, own, refusal),
        _of_deepspeed(job, found.get("deepspeed"), own.get("deepspeed")),
    ]
    sentences = [each for each in told if each is not None]
    if not sentences:
        return None
    installed = ", ".join(f"{name} {release}" for name, release in sorted(found.items()))
    return " ".join((*sentences, f"Installed there: {installed}."))


def _of_transformers(job: TrainingJob, release: str, own: Mapping[str, str], refusal: Reason | None) -> str:
    written = None if job.workload is None else job.workload.transformers_release
    other = (
        f"the trainer has {own.get(TRANSFORMERS_LIBRARY)}" if written is None else f"workload.packages says {written}"
    )
    runs = f"The script runs transformers {release}; {other}."
    if refusal is not None:
        remedy = f" {refusal.remedy}" if refusal.remedy else ""
        return f"{runs} Plans stay as they are, since none can be made for it. {refusal.sentence}{remedy}"
    return f"{runs} The next plan is for {release}, if one fits then."


def _of_deepspeed(job: TrainingJob, release: str | None, own: str | None) -> str | None:
    """A script whose states DeepSpeed does not divide has none of its buffers."""
    has_buffers = job.workload is not None and job.workload.divides_states and job.names_a_model
    if release is None or own is None or not has_buffers or release_numbers(release) == release_numbers(own):
        return None
    return f"The script runs DeepSpeed {release}; what its buffers take is predicted as of {own}."
