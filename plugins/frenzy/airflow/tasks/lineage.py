"""What a finished training read and made, as OpenLineage tells it. For installations that have its provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from frenzy.core.runs.protocol import RunView
from frenzy.core.values.sources import sources


def training_lineage(view: RunView, facts: Mapping[str, Any]) -> Any:
    """The operator's lineage: data and base model go in, the model comes out with what ``facts`` says of it.

    Prepared data have the digest of their content as version, a hub's model its commit.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset, tags_dataset

    told = {"job": view.run.job.name, "team": view.run.job.team, "owner": view.run.owner, **facts}
    tags = [
        tags_dataset.TagsDatasetFacetFields(key=f"frenzy.{name}", value=str(value), source="FRENZY")
        for name, value in told.items()
        if value is not None
    ]
    namespace, name = dataset_name(str(facts["path"]))

    def version(text: str | None) -> dict[str, Any]:
        of = dataset_version_dataset.DatasetVersionDatasetFacet
        return {} if text is None else {"version": of(datasetVersion=text)}

    facets = {**version(view.run.run_key), "tags": tags_dataset.TagsDatasetFacet(tags=tags)}
    return OperatorLineage(
        inputs=[InputDataset(*place, facets=version(known)) for place, known in _read(view, facts).items()],
        outputs=[OutputDataset(namespace=namespace, name=name, facets=facets)],
    )


def _read(view: RunView, facts: Mapping[str, Any]) -> dict[tuple[str, str], str | None]:
    """What the training read, by namespace and name, with its version where one is known."""
    job = view.run.job
    found: dict[tuple[str, str], str | None] = {}
    for field, place in sources(job):
        found.setdefault(dataset_name(place), facts.get("data_digest") if field == "data.path" else None)
    if job.model.hub_id is not None:
        found["hf", job.model.hub_id] = view.run.commit
    return found


def dataset_name(place: str) -> tuple[str, str]:
    """Namespace and name of a path or URL, by OpenLineage's rules: ``s3://bucket`` and ``key``, ``file`` and a path."""
    parts = urlsplit(place)
    if not parts.scheme or parts.scheme == "file":
        return "file", parts.path
    name = parts.path.lstrip("/")
    host = parts.netloc.rpartition("@")[2]  # no user, no password
    return (f"{parts.scheme}://{host}", name) if name else (parts.scheme, host)
