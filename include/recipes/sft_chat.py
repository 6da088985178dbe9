"""Supervised fine-tuning on chats by TRL's SFTTrainer: only the answers count in the loss.

Whole weights, or adapters where the job has ``training.lora``; ``--packing`` puts several chats into a sequence, of
which none sees another. Runs as a job of Frenzy (include/jobs/recipes/sft-chat.yaml), or under torchrun:

    torchrun --nproc-per-node 2 include/recipes/sft_chat.py --model FOLDER --data chats.jsonl
"""

from __future__ import annotations

import argparse
from typing import Any

import recipe_parts as recipe
from datasets import Dataset
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

import frenzy_agent

IGNORED = -100


def command(words: list[str] | None = None) -> argparse.Namespace:
    parser = recipe.command_line(__doc__)
    parser.add_argument("--packing", action="store_true", help="several chats in one sequence")
    parser.add_argument("--column", default="messages", help="the column of the chat, a list of messages")
    parser.add_argument("--role-key", default="role", help="of a message: who speaks")
    parser.add_argument("--content-key", default="content", help="of a message: what is said")
    parser.add_argument(
        "--role", action="append", default=[], metavar="THEIRS=OURS", help="such as human=user and gpt=assistant"
    )
    return parser.parse_args(words)


def messages_of(chat: Any, index: int, words: argparse.Namespace) -> list[dict[str, str]]:
    """The chat with the keys and roles that templates know."""
    roles = dict(each.split("=", 1) for each in words.role)
    if not isinstance(chat, list) or not chat:
        recipe.refuse_row(index, f"{words.column} is no list of messages")
    for number, each in enumerate(chat, start=1):
        for key in (words.role_key, words.content_key):
            if not isinstance(each, dict) or not isinstance(each.get(key), str):
                recipe.refuse_row(index, f"message {number} has no text in {key!r}")
    return [
        {"role": roles.get(each[words.role_key], each[words.role_key]), "content": each[words.content_key]}
        for each in chat
    ]


def template_with_masks(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer's template if it marks the answers, or TRL's edition of it that does."""
    if not tokenizer.chat_template:
        recipe.refuse_row(0, "the tokenizer has no chat template, so that no chat can be written")
    if has_generation_markers(tokenizer.chat_template):
        return tokenizer.chat_template
    try:
        return get_training_chat_template(tokenizer)
    except ValueError:
        recipe.refuse_row(
            0,
            "the chat template has no {% generation %}, so that nobody can tell the answers' tokens from the others; "
            "put {% generation %} and {% endgeneration %} around them in the tokenizer's chat_template",
        )


def tokens_of(rows: Dataset, tokenizer: PreTrainedTokenizerBase, words: argparse.Namespace) -> Dataset:
    """``input_ids``, and as ``labels`` those of the answers; every row is looked at before any training."""
    template = template_with_masks(tokenizer)

    def one(row: dict[str, Any], index: int) -> dict[str, list[int]]:
        messages = messages_of(row[words.column], index, words)
        try:
            found = tokenizer.apply_chat_template(
                messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
            )
        except TemplateError as error:
            recipe.refuse_row(index, f"the chat template cannot write it: {error}")
        ids, masks = found["input_ids"], found["assistant_masks"]
        if not any(masks):
            roles = ", ".join(dict.fromkeys(each["role"] for each in messages))
            recipe.refuse_row(index, f"no token of it is an answer; its roles are {roles} (--role THEIRS=assistant)")
        labels = [token if counts else IGNORED for token, counts in zip(ids, masks, strict=True)]
        return {"input_ids": ids, "labels": labels}

    return rows.map(one, with_indices=True, remove_columns=rows.column_names)


def main() -> None:
    words = command()
    length = int(recipe.section("data").get("sequence_length", 256))
    tokenizer = recipe.tokenizer_of(words.model)
    rows = recipe.rows_of(words.data)
    recipe.need_columns(rows, words.column)
    arguments = SFTConfig(**recipe.trainer_settings(), max_length=length, packing=words.packing)
    with arguments.main_process_first():
        chats = tokens_of(rows, tokenizer, words)
    trainer = SFTTrainer(
        model=recipe.model_of(AutoModelForCausalLM, words.model, tokenizer),
        args=arguments,
        train_dataset=chats,
        processing_class=tokenizer,
        peft_config=recipe.adapters("CAUSAL_LM"),
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    recipe.train(trainer)


if __name__ == "__main__":
    main()
