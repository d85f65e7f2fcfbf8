"""One rank of a job that compiles in step: each compiles the same model with torch.compile, then all reduce over gloo.

Arguments: a file that all ranks can reach and that is new, and the seconds that a rank waits for another one in a
collective. Prints one JSON line with its node and the seconds that it compiled. The settings are those of
inductor_job.py.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch  # reads the environment when it is imported
from torch import distributed

LAYERS = 5


def main() -> None:
    meeting, patience = sys.argv[1:]
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    torch.set_num_threads(1)  # part of the key of a CPU graph
    torch.manual_seed(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    group = distributed.new_group(timeout=timedelta(seconds=float(patience)))
    distributed.barrier()
    layers = [torch.nn.Linear(64 + n, 65 + n) for n in range(LAYERS)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU(), torch.nn.Softplus())))
    started = time.perf_counter()
    loss = torch.compile(model)(torch.ones(16, 64)).sum()
    loss.backward()
    seconds = time.perf_counter() - started
    report = {"node": os.environ["SLURMD_NODENAME"], "seconds": round(seconds, 3)}
    print(json.dumps(report), flush=True)  # noqa: T201 - the job's output is its result
    distributed.all_reduce(loss.detach(), group=group)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
