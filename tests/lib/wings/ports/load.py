"""Jobs of two nodes that ask for ports, in a load run."""

from __future__ import annotations

from tests.lib.wing_load import WRONG, Kind, WingLoad

UNEQUAL = f"{WRONG}: the nodes have not the same MASTER_PORT"
_PORT = "srun --ntasks-per-node=1 sh -c 'echo \"at $MASTER_ADDR:$MASTER_PORT\"' | sort -u | wc -l"
# A node whose prolog could not read the head node's answer has no port: the rule does not require one.
COSTS_A_PORT = frozenset({
    *("a worker killed", "a read-only store", "switched off", "a full store", "a store gone", "a full state disk"),
    *("off on one node", "torn files", "a store not connected"),
})  # fmt: skip

LOAD = WingLoad(
    rule="{name: ports, rendezvous: {ports: 20000-20999, shared_nodes: true}}",
    kinds={
        "meets": Kind(
            4,
            (f'[ "$({_PORT})" = 1 ] || echo "{UNEQUAL}"', "sleep {nap}"),
            "ports=2",
            ("--nodes=2",),
            anywhere=False,
        )
    },
    refused={"ports=9999": "ports"},
    excused={UNEQUAL: COSTS_A_PORT},
)
