"""Sequence classification by transformers.Trainer: a text, and to which class it belongs.

Labels are texts or whole numbers; the classes are those that occur. The last rows, ``data.validation_fraction`` of all,
are held out, and the accuracy on them is printed at the end. A job of Frenzy (include/jobs/recipes/classify.yaml), or
under torchrun:

    torchrun --nproc-per-node 2 include/recipes/classify.py --model FOLDER --data speakers.jsonl --label speaker
"""

from __future__ import annotations

import argparse
from typing import Any

from datasets import Dataset
from peft import get_peft_model
from recipe_parts import (
    adapters,
    command_line,
    model_of,
    need_columns,
    refuse_row,
    rows_of,
    section,
    setting,
    tokenizer_of,
    trainer_settings,
)
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

import frenzy_agent


def parsed() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--label", default="label", help="the column of the class; the text's is data.text_column")
    return parser.parse_args()


def classes_of(rows: Dataset, column: str, text: str) -> list[str]:
    """The classes in order; every row is looked at before any training."""
    for index, row in enumerate(rows):
        if isinstance(row[column], bool) or not isinstance(row[column], str | int) or row[column] == "":
            refuse_row(index, f"{column} = {row[column]!r} is neither a text nor a whole number")
        if not isinstance(row[text], str) or not row[text]:
            refuse_row(index, f"{text} has no text")
    found = sorted({str(each) for each in rows[column]})
    if len(found) < 2:
        refuse_row(0, f"{column} is {found[0]!r} in every row, so that nothing can be told apart")
    return found


def tokens_of(rows: Dataset, tokenizer: PreTrainedTokenizerBase, text: str, column: str, classes: list[str]) -> Dataset:
    numbers = {name: number for number, name in enumerate(classes)}
    length = int(section("data").get("sequence_length", 256))

    def one(row: dict[str, Any]) -> dict[str, Any]:
        found = tokenizer(row[text], truncation=True, max_length=length)
        return {"input_ids": found["input_ids"], "labels": numbers[str(row[column])]}

    return rows.map(one, remove_columns=rows.column_names)


def accuracy(predicted: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def main() -> None:
    words = parsed()
    text = section("data").get("text_column", "text")
    tokenizer = tokenizer_of(words.model)
    rows = rows_of(words.data)
    need_columns(rows, text, words.label)
    classes = classes_of(rows, words.label, text)
    names = dict(enumerate(classes))
    labels = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    model = model_of(AutoModelForSequenceClassification, words.model, tokenizer, **labels)
    lora = adapters("SEQ_CLS")
    arguments = TrainingArguments(**trainer_settings())
    with arguments.main_process_first():
        tokens = tokens_of(rows, tokenizer, text, words.label, classes)
    num_held_out = int(len(tokens) * section("data").get("validation_fraction", 0.02))
    trainer = Trainer(
        model=model if lora is None else get_peft_model(model, lora),
        args=arguments,
        train_dataset=tokens.select(range(len(tokens) - num_held_out)),
        eval_dataset=tokens.select(range(len(tokens) - num_held_out, len(tokens))),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    trainer.train(resume_from_checkpoint=frenzy_agent.resume_from())
    if trainer.state.global_step == arguments.max_steps:
        if num_held_out:
            print(trainer.evaluate())
        trainer.save_model(setting("MODEL_DIR", "build/recipe/model"))


if __name__ == "__main__":
    main()
