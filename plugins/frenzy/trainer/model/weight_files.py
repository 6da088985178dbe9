"""A pretrained model's weights as they lie in safetensors files, by the names of its parameters.

Nothing is read but the files' headers until a parameter, or a range of it, is asked for.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from frenzy.trainer.disk_room import check_room
from frenzy.trainer.outcome import BadInputError
from frenzy.trainer.tensor_file import StoredTensor, read_header

logger = logging.getLogger(__name__)

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHOWN: Final = 3


class Values(Protocol):
    """A parameter's values, wherever they are."""

    def read_into(self, target: torch.Tensor, start: int = 0) -> None:
        """Fill the flat ``target`` with elements from ``start`` on, converting its dtype and device."""
        ...


@dataclass(frozen=True, slots=True)
class HeldValues:
    """Values in host memory."""

    tensor: torch.Tensor

    def read_into(self, target: torch.Tensor, start: int = 0) -> None:
        with torch.no_grad():
            target.copy_(self.tensor.reshape(-1).narrow(0, start, target.numel()))


@dataclass(frozen=True, slots=True)
class _Merged:
    """Tensors of the files, with the pattern that each one's name has, that a conversion of transformers takes."""

    target: str
    converter: Any
    tensors: tuple[tuple[str, str, StoredTensor], ...]

    def values(self, model: Any) -> dict[str, torch.Tensor]:
        """The parameters made of them, by name, in the files' format."""
        converter = copy.deepcopy(self.converter)
        for name, pattern, stored in self.tensors:
            converter.add_tensor(self.target, name, pattern, stored.whole())
        made = converter.convert(self.target, model=model, config=model.config)
        return {name: each[0] if isinstance(each, list) else each for name, each in made.items()}


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """What files hold of a model: parameters and buffers that lie there as they are, and those to be merged.

    unexpected: names in the files that the model has no place for. place: of the files; None where there are none.
    """

    plain: Mapping[str, StoredTensor]
    _merged: tuple[_Merged, ...]
    unexpected: tuple[str, ...] = ()
    place: str | None = None

    def merged(self, model: Any) -> Iterator[tuple[str, HeldValues]]:
        """What transformers' conversions make of several tensors (experts of one layer), one group after another.

        Raises BadInputError where one of them is not there.
        """
        for group in self._merged:
            for name, tensor in group.values(model).items():
                _check_shape(name, tensor, model.get_parameter(name), str(self.place))
                yield name, HeldValues(tensor)


def find_weight_files(place: str) -> tuple[Path, ...]:
    """The safetensors files in the folder ``place``; none where it has no such files."""
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

    return _found(place, single=SAFE_WEIGHTS_NAME, index=SAFE_WEIGHTS_INDEX_NAME)


def fetch_weights(hub_id: str, revision: str | None, on_bytes: Callable[[int], None]) -> tuple[Path, ...]:
    """The files of a hub's weights on this machine, fetched unless they are; safetensors where there are any.

    on_bytes: is told of bytes as they come.
    """
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

    options: dict[str, Any] = {"revision": revision, "tqdm_class": _telling(on_bytes)}
    return _found(hub_id, single=SAFE_WEIGHTS_NAME, index=SAFE_WEIGHTS_INDEX_NAME, **options) or _found(
        hub_id, single=WEIGHTS_NAME, index=WEIGHTS_INDEX_NAME, **options
    )


def file_if_any(place: str, name: str, *, revision: str | None = None, tqdm_class: Any = None) -> str | None:
    """Where the file ``name`` of a folder or of a hub's model lies, fetched unless it is; None where there is none.

    Raises what the hub's client raises where it cannot tell: a hub that is away is not one without the file.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if Path(place).is_dir():
        return str(Path(place, name)) if Path(place, name).is_file() else None
    if _COMMIT.fullmatch(revision or ""):
        known = try_to_load_from_cache(place, name, revision=revision)
        if known is not None:
            return known if isinstance(known, str) else None  # else the hub said that there is none
    try:
        return str(hf_hub_download(place, name, revision=revision, tqdm_class=tqdm_class))
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return None


def _telling(on_bytes: Callable[[int], None]) -> type:
    """A progress bar for the hub's client that shows nothing, and tells of bytes."""
    from huggingface_hub.utils.tqdm import tqdm

    class Telling(tqdm):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            if n is not None and n > 0:  # a look that finds nothing new is no progress
                on_bytes(int(n))
            return None

    return Telling


def _found(place: str, *, single: str, index: str, **options: Any) -> tuple[Path, ...]:
    # As transformers does: an index may be left of another model.
    whole = file_if_any(place, single, **options)
    if whole is not None:
        return (Path(whole),)
    listing = file_if_any(place, index, **options)
    if listing is None:
        return ()
    described = json.loads(Path(listing).read_text(encoding="utf-8"))
    names = sorted(set(described["weight_map"].values()))
    if not all(Path(listing).with_name(name).exists() for name in names):
        num_bytes = int(described.get("metadata", {}).get("total_size", 0))
        check_room(Path(listing), num_bytes, field="model.hub_id", value=place)
    found = {name: file_if_any(place, name, **options) for name in names}
    missing = [name for name, each in found.items() if each is None]
    if missing:
        raise BadInputError("model", place, f"{index} names {missing[0]}, which is not there")
    return tuple(Path(each) for each in found.values() if each is not None)


def weight_files(model: Any, paths: tuple[Path, ...], place: str) -> WeightFiles:
    """What ``paths`` hold of ``model``, whose parameters may be on the meta device. Raises BadInputError."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    stored = {key: each for path in paths for key, each in read_header(str(path))[0].items()}
    known = model.state_dict()
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    plain: dict[str, StoredTensor] = {}
    unexpected: list[str] = []
    groups: dict[str, list[tuple[str, str, StoredTensor]]] = {}
    for key in sorted(stored, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
        if name not in known:
            unexpected.append(key)
        elif pattern is None:
            _check_shape(name, stored[key], known[name], place)
            plain[name] = stored[key]
        else:
            groups.setdefault(name, []).append((key, pattern, stored[key]))
    if not plain and not groups:
        raise BadInputError("model", place, "its weights are of another model; no name in its files is this model's")
    merged = (_Merged(name, by_pattern[parts[0][1]], tuple(parts)) for name, parts in groups.items())
    return WeightFiles(plain, tuple(merged), tuple(unexpected), place)


def check_names(
    model: Any, missing: Iterable[str], unexpected: Iterable[str], place: str, *, new_head: bool = False
) -> None:
    """Refuse files without some of a model's parameters, which would be random; warn of what it has no place for.

    What transformers knows a family's files to lack, or to have beside, is neither. new_head: a head is random by
    intent where the files' config says that they are the model without one. Raises BadInputError.
    """
    from transformers.utils.loading_report import LoadStateDictInfo

    info = LoadStateDictInfo(set(missing), set(unexpected), set(), [], {}, set())
    model._adjust_missing_and_unexpected_keys(info)
    lacks, beside = _some(info.missing_keys), _some(info.unexpected_keys)
    if lacks and not (new_head and _is_head(model, info.missing_keys)):
        hint = f" They hold {beside}, which the model has not: are those the same under other names?" if beside else ""
        allowed = f"its files lack {lacks}, which would be random; save the whole model there, with its config.json"
        raise BadInputError("model", place, f"{allowed}.{hint}")
    if lacks:
        logger.warning("%s holds a model without a head: %s begins at random", place, lacks)
    if beside:
        logger.warning("%s holds %s, which the model has no place for", place, beside)


def _is_head(model: Any, names: Iterable[str]) -> bool:
    """Whether the config is of the model without its head, and ``names`` are all of the head."""
    base = model.base_model
    is_bare = base is not model and model.config.architectures == [type(base).__name__]
    return is_bare and not any(each.startswith(f"{model.base_model_prefix}.") for each in names)


def _some(names: Iterable[str]) -> str:
    """The first of ``names`` in order of layers, and how many more there are."""
    from transformers.core_model_loading import dot_natural_key

    first, more = sorted(names, key=dot_natural_key), ""
    if len(first) > _SHOWN:
        first, more = first[:_SHOWN], f" and {len(first) - _SHOWN} more"
    return ", ".join(first) + more


def _check_shape(name: str, stored: StoredTensor | torch.Tensor, needed: torch.Tensor, place: str) -> None:
    if tuple(stored.shape) != tuple(needed.shape):
        shapes = f"{list(stored.shape)} in its files and {list(needed.shape)} by its config"
        raise BadInputError("model", place, f"{name} is {shapes}; use the config that belongs to the weights")
