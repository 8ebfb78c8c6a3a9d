#!/usr/bin/env python3
"""Makes the reference files beside it: tiny random Qwen3s as Hugging Face's transformers saves them, and what that package
computes with them. Needs the packages torch, transformers and safetensors. Sums differ in their last bits from one
processor to another; the weights do not.
"""

import pathlib

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def make(name, seed, **settings):
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        attn_implementation="eager",
        **settings,
    )
    model = transformers.Qwen3ForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Large enough that attention is not uniform; no norm is 1.
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (parameter.dim() == 1))
    model.save_pretrained(HERE / name, max_shard_size="60KB")
    for extra in ["generation_config.json"]:
        (HERE / name / extra).unlink(missing_ok=True)

    ids = torch.randint(0, config.vocab_size, (2, 25))
    tokens, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    gradients = {f"gradient.{key}": value.grad for key, value in model.named_parameters()}
    reference = {
        "tokens": tokens.to(torch.int32),
        "targets": targets.to(torch.int32),
        "logits": logits.detach().contiguous(),
        "loss": loss.detach().reshape(1),
        **gradients,
    }
    save_file(reference, HERE / f"{name}-reference.safetensors")
    print(name, transformers.__version__, torch.__version__, loss.item())


make("tied", 1, tie_word_embeddings=True)
make("untied", 2, tie_word_embeddings=False)
