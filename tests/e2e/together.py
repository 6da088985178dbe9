"""Jobs that are handed in at once and train beside each other; a test looks at the runs that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.e2e.walker import MODEL, Walker

# The ids of a DAG and of its run.
Run = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Seven runs; six GPUs are of types that a job need not name.

    evaluated: of a model so large that a virtual GPU's own resolution, about 2 MiB, is a small part of its peak.
    prepared: two of one job, whose text is long. producer: of the model that is the Asset frenzy://models/upstream.
    """

    evaluated: Run
    prepared: tuple[Run, Run]
    producer: Run
    plain: tuple[Run, Run, Run]

    @property
    def runs(self) -> tuple[Run, ...]:
        return (self.evaluated, *self.prepared, self.producer, *self.plain)


def hand_in(walker: Walker, folder: Path) -> Together:
    """Start them all, whose own files go into ``folder``."""
    long_text = folder / "long.txt"
    long_text.write_text(walker.corpus.read_text(encoding="utf-8") * 3, encoding="utf-8")
    evaluation = {"enabled": True, "max_new_tokens": 8, "max_sequences": 4}
    larger = {"config": {**MODEL, "n_embd": 256, "n_layer": 6}}
    jobs = {
        "complete": {"model": larger, "training": {"max_steps": 8}, "evaluation": evaluation},
        "prepared": {"data": {"path": str(long_text)}, "training": {"max_steps": 4}, "evaluation": {"enabled": True}},
        "upstream": {"training": {"max_steps": 2}},
        **{f"plain-{number}": {"training": {"max_steps": 6}} for number in (1, 2, 3)},
    }
    evaluated, first, producer, one, two, three = walker.start_all(jobs)
    second = first[0], walker.trigger(first[0])
    return Together(evaluated=evaluated, prepared=(first, second), producer=producer, plain=(one, two, three))
