"""A job that serves a small model of random weights with SGLang, which compiles its kernels."""

from __future__ import annotations

import os
import time

os.environ |= {"HF_HUB_OFFLINE": "1"}

import sglang
from report import report
from small_model import MODEL, NEW_TOKENS, TOKENS


def main() -> None:
    started = time.perf_counter()
    engine = sglang.Engine(
        model_path=MODEL, load_format="dummy", skip_tokenizer_init=True, mem_fraction_static=0.3, random_seed=0
    )
    sampling = {"temperature": 0.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    answer = engine.generate(input_ids=TOKENS, sampling_params=sampling)
    seconds = time.perf_counter() - started
    engine.shutdown()
    found = bytes(str(list(answer["output_ids"])), "ascii")
    report(seconds, found, packages=("sglang", "torch"), hits=None, misses=None)


if __name__ == "__main__":
    main()
