"""What a finished training read and made, as OpenLineage tells it. For installations that have its provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from frenzy.core.runs.protocol import RunView
from frenzy.core.values.sources import sources


def training_lineage(view: RunView, facts: Mapping[str, Any]) -> Any:
    """The operator's lineage: data and base model go in, the model comes out with what ``facts`` says of it."""
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
    facets = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=view.run.run_key),
        "tags": tags_dataset.TagsDatasetFacet(tags=tags),
    }
    places = dict.fromkeys(dataset_name(place) for _, place in sources(view.run.job))
    if view.run.job.model.hub_id is not None:
        places["hf", view.run.job.model.hub_id] = None
    return OperatorLineage(
        inputs=[InputDataset(namespace=space, name=each) for space, each in places],
        outputs=[OutputDataset(namespace=namespace, name=name, facets=facets)],
    )


def dataset_name(place: str) -> tuple[str, str]:
    """Namespace and name of a path or URL, by OpenLineage's rules: ``s3://bucket`` and ``key``, ``file`` and a path."""
    parts = urlsplit(place)
    if not parts.scheme or parts.scheme == "file":
        return "file", parts.path
    name = parts.path.lstrip("/")
    host = parts.netloc.rpartition("@")[2]  # no user, no password
    return (f"{parts.scheme}://{host}", name) if name else (parts.scheme, host)
