"""The highest memory of a GPU, in every account of one: a step's, an attempt's, a measurement's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge, Le

from frenzy.core.values.codec import inlined

Bytes = Annotated[int, Ge(0), Le(2**60)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Highest memory in bytes: of one GPU, or of any of many.

    allocated_bytes: held by tensors (by torch's allocator on a GPU; on a virtual GPU data memory above the
    process's baseline). reserved_bytes: what the allocator took from the device (as allocated on a virtual GPU).
    device_used_bytes: in use on the device as a whole at the end of a step (NVML's figure; on a virtual GPU the
    process's).
    """

    allocated_bytes: Bytes = 0
    reserved_bytes: Bytes = 0
    device_used_bytes: Bytes = 0

    def __or__(self, other: PeakMemory) -> PeakMemory:
        """The higher of both, each for itself."""
        return PeakMemory(
            allocated_bytes=max(self.allocated_bytes, other.allocated_bytes),
            reserved_bytes=max(self.reserved_bytes, other.reserved_bytes),
            device_used_bytes=max(self.device_used_bytes, other.device_used_bytes),
        )

    @property
    def held_bytes(self) -> int:
        """What a card must have had for it, beside what lies outside the allocator."""
        return max(self.allocated_bytes, self.reserved_bytes)

    @property
    def outside_bytes(self) -> int:
        """What the device has in use beside the allocator: the context and the libraries' own buffers."""
        return max(0, self.device_used_bytes - self.reserved_bytes)


# What the three are called in the documents that hold them.
KEYS_IN_A_STEP: Final = inlined(PeakMemory, "allocated_peak_bytes", "reserved_peak_bytes", "device_used_bytes")
KEYS_IN_AN_ATTEMPT: Final = inlined(PeakMemory, "measured_peak_bytes", "reserved_peak_bytes", "device_used_peak_bytes")
KEYS_IN_A_SAMPLE: Final = inlined(PeakMemory, "allocated_bytes", "reserved_bytes", "device_used_bytes")
KEYS_IN_A_MEASUREMENT: Final = inlined(PeakMemory, "measured_bytes", "reserved_bytes", "device_used_bytes")
