"""Training by transformers' Trainer: a step of a case is a whole ``train()`` of NUM_STEPS steps, padded batches and all."""

import itertools
import tempfile

import torch
import transformers

from tests.world.harness.training import Training, Way

NUM_STEPS = 2
VOCABULARY = 64


class Gradients(transformers.TrainerCallback):
    """Keeps what the Trainer forgets after its step."""

    def __init__(self):
        self.kept = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.kept.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def sentences(count: int = 8) -> list[dict]:
    """Of different lengths, so that the collator pads each batch and masks what it padded."""
    return [
        {"input_ids": torch.randint(3, VOCABULARY, (length,)).tolist()}
        for length in itertools.islice(itertools.cycle((5, 9, 7)), count)
    ]


def pad(features: list[dict]) -> dict[str, torch.Tensor]:
    """What DataCollatorForLanguageModeling makes, without a tokenizer."""
    longest = max(len(feature["input_ids"]) for feature in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, feature in enumerate(features):
        ids[row, : len(feature["input_ids"])] = torch.tensor(feature["input_ids"])
        mask[row, : len(feature["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def llama(**settings) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.1,
        pad_token_id=0,
        **settings,
    )
    return transformers.LlamaForCausalLM(config)


def by_trainer(way: Way, model: torch.nn.Module, **arguments) -> Training:
    folder = tempfile.mkdtemp()
    gradients = Gradients()
    trainer = transformers.Trainer(
        model=way.model(model),
        args=transformers.TrainingArguments(
            output_dir=folder,
            max_steps=NUM_STEPS,
            per_device_train_batch_size=2,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,  # or it looks at the signature of forward, which torch's wrapper hides
            **arguments,
        ),
        train_dataset=sentences(),
        data_collator=pad,
        callbacks=[gradients],
    )
    trainer.training_step = way.step(trainer.training_step)

    def step():
        gradients.kept.clear()
        trainer.train()
        losses = [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry]
        return losses, list(gradients.kept), trainer.optimizer

    return Training(step, (model,))
