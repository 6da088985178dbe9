"""Raw text to cleaned parquet with pandas; its statistics feed the plan; then training and evaluation."""

import os
from pathlib import Path

from airflow.sdk import DAG, task

from frenzy import frenzy_evaluation, frenzy_training

CLEANED = Path(os.environ.get("FRENZY_HOME", ".frenzy")).expanduser().absolute() / "etl"
GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 256, "vocab_size": 264}
JOB = {
    "name": "etl-example",
    "model": {"config": {**GPT2, "bos_token_id": 256, "eos_token_id": 256}},
    "training": {"max_steps": 20, "global_batch_size": 16, "precision": "fp32"},
}

with DAG("example_etl_then_train", schedule=None, tags=["frenzy", "example"], doc_md=__doc__) as dag:

    @task(multiple_outputs=True)
    def clean(run_id: str | None = None) -> dict:
        """``run_id`` is Airflow's: each run has a folder of its own."""
        from pydoc_data.topics import topics  # stands for your raw data: texts that come with Python

        import pandas as pd

        raw = pd.Series("\n\n".join(topics.values()).split("\n\n"), name="text")
        tidy = raw.str.replace(r"[ \t]+", " ", regex=True).str.strip()
        table = tidy[tidy.str.len() > 0].drop_duplicates().to_frame()
        path = CLEANED / str(run_id).replace(":", "-") / "clean.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path, index=False)
        # One token for each byte, and one that ends the paragraph.
        num_tokens = table["text"].map(lambda text: len(text.encode()) + 1)
        facts = {"num_rows": len(table), "num_tokens": int(num_tokens.sum())}
        facts["longest_sequence_tokens"] = int(num_tokens.max())
        return {"job": {**JOB, "data": {"path": str(path), "sequence_length": 128}}, "data_facts": facts}

    cleaned = clean()
    frenzy_training(cleaned["job"], data_facts=cleaned["data_facts"]) >> frenzy_evaluation()
