"""A hub's model on this machine: fetched once for all ranks of a node, at one commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from frenzy.core.values.errors import FrenzyError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.job import ModelSpec
from frenzy.trainer import heartbeats
from frenzy.trainer.model.weight_files import fetch_weights, file_if_any
from frenzy.trainer.outcome import BadInputError, one_line

_TRY_AGAIN_S: Final = 60.0


def on_this_machine(model: ModelSpec) -> ModelSpec:
    """``model`` as a folder: of a hub id its snapshot in the cache of the hub's client, yet without its weights.

    Raises BadInputError where there is no such model or revision or no right to it, TemporaryError where the hub
    cannot be reached and the cache does not have it.
    """
    if model.hub_id is None:
        return model
    from transformers import AutoTokenizer
    from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME
    from transformers.utils.hub import cached_file

    heartbeats.beat(f"fetching the model {model.hub_id}")
    with _named(model):
        config = cached_file(model.hub_id, CONFIG_NAME, revision=model.revision)
        file_if_any(model.hub_id, GENERATION_CONFIG_NAME, revision=model.revision)
        if model.tokenizer_used == "model":
            AutoTokenizer.from_pretrained(model.hub_id, revision=model.revision or "main", trust_remote_code=False)
    return replace(model, path=str(Path(str(config)).parent), hub_id=None, revision=None)


def fetch_weights_of(model: ModelSpec) -> None:
    """Put a hub's weights beside what ``on_this_machine`` has fetched; raises as it does."""
    if model.hub_id is None:
        return
    with _named(model):
        weights = fetch_weights(
            model.hub_id, model.revision, heartbeats.counting(f"fetching the weights of {model.hub_id}")
        )
    if not weights:
        raise BadInputError("model.hub_id", model.hub_id, "it has no weights of safetensors or torch")


@contextmanager
def _named(model: ModelSpec) -> Iterator[None]:
    try:
        yield
    except FrenzyError:
        raise
    except Exception as error:
        raise refusal(model, error) from error


def refusal(model: ModelSpec, error: Exception) -> FrenzyError:
    """What a hub's client means by ``error``, which transformers may have put into another."""
    kinds = {type(each).__name__ for each in _causes(error)}
    if "GatedRepoError" in kinds:
        allowed = "accept its terms on the hub, and give a token that may read it: secrets: {HF_TOKEN: ...}"
        return BadInputError("model.hub_id", model.hub_id, allowed)
    if "RevisionNotFoundError" in kinds:
        return BadInputError("model.revision", model.revision, f"give a commit, a branch or a tag of {model.hub_id}")
    if "RepositoryNotFoundError" in kinds:
        allowed = "no such model is there for you: check the name, or give a token: secrets: {HF_TOKEN: ...}"
        return BadInputError("model.hub_id", model.hub_id, allowed)
    # A transfer that is cut ends in an error of the HTTP library that the hub's client has, which is no OSError.
    is_of_transfer = isinstance(error, OSError) or "TransportError" in {each.__name__ for each in type(error).__mro__}
    if kinds & {"EntryNotFoundError", "RemoteEntryNotFoundError"} or not is_of_transfer:
        return BadInputError("model.hub_id", model.hub_id, f"no model can be read there ({one_line(error)})")
    detail = f"The hub could not be reached for {model.hub_id} ({one_line(error)})."
    return TemporaryError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail), retry_after_s=_TRY_AGAIN_S)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
