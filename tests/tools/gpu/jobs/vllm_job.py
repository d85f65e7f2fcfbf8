"""A job that serves a small model of random weights with vLLM, which compiles it."""

from __future__ import annotations

import os
import time

os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

from report import report
from small_model import MODEL, NEW_TOKENS, TOKENS
from vllm import LLM, SamplingParams


def main() -> None:
    started = time.perf_counter()
    model = LLM(
        MODEL,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=256,
        gpu_memory_utilization=0.3,
        seed=0,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    (answer,) = model.generate([{"prompt_token_ids": TOKENS}], sampling)
    seconds = time.perf_counter() - started
    found = bytes(str(list(answer.outputs[0].token_ids)), "ascii")
    report(seconds, found, packages=("vllm", "torch"), hits=None, misses=None)


if __name__ == "__main__":
    main()
