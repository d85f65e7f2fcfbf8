"""The jobs of a load run: which there are follows from a seed.

Each script proves what it got: it reads whole entries or none, and its last line says how it went. The profiles are
defined in the policy, so that a job costs a shell and no compiler.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.lib.accounts import ALICE, BOB
from tests.lib.shell_profiles import profiles
from tests.lib.wing_load import WRONG, Kind, of_wings

POLICY = """\
harvest: {{budget: 10s}}
{profiles}
rules:
  - {{name: everyone, profiles: [alpha]}}
  - {{name: shared, match: {{partition: ci}}, scope: site, publish: {{users: [ws-alice]}}}}
{rules}
"""
OF_WINGS = of_wings()
RULES = "".join(f"  - {wing.rule}\n" for wing in OF_WINGS)
# Nodes of a job have the first one alike.
PROFILES = profiles(alpha="*.bin", beta="*/").replace("  beta:", "    in_step: true\n  beta:")
NAMES = 40  # of entries: most jobs find those that they want, some make new ones
IMAGES = 4  # that jobs ask for at a time; with each wave a new one replaces the oldest
DONE, WITHOUT = "done", "without warmstart"
NO_IMAGE = f"{WRONG}: no image is there"
NO_COMPONENT = f"{WRONG}: a component has no cache"
# A whole entry ends with its own name, its third line is the checksum of what follows, and its second one says who made
# it. Nobody ever sees half of one, nor one of another name. What a job saw, made and removed it says itself, for
# tools/load/judge.py.
_BEGIN = """\
whole() {{
    [ "$(head -n1 "$1")" = "$2" ] && [ "$(tail -n1 "$1")" = "end $2" ] &&
        [ "$(tail -n +4 "$1" | cksum)" = "$(sed -n 3p "$1")" ]
}}
entry() {{ # DIRECTORY NAME
    if [ -e "$1" ]; then
        whole "$1" "$2" || echo "{wrong}: $1 is not whole"
    else
        mkdir -p "${{1%/*}}"
        text="$(head -c 20000 /dev/urandom | base64; echo "end $2")"
        {{ echo "$2"; echo "$2 $USER $SLURM_JOB_ID"; echo "$text" | cksum; echo "$text"; }} >"$1.tmp" &&
            mv "$1.tmp" "$1" && echo "made $2 $USER $SLURM_JOB_ID"
    fi
}}
tell() {{ # VERB FILE...
    for file in "${{@:2}}"; do [ ! -f "$file" ] || {{ read -r && read -r maker && echo "$1 $maker"; }} <"$file"; done
}}
[ -n "$WARMSTART_CACHE" ] || {{ echo "{without}"; exit 0; }}
touch "$TMPDIR/mine" || echo "{wrong}: TMPDIR"
tell saw "$ALPHA_CACHE"/*.bin
"""


_USE = "\n".join(f'entry "$ALPHA_CACHE/{{{name}}}.bin" {{{name}}}' for name in "abc")
_IMAGE = f"""\
said="$(unsquashfs -cat "$WARMSTART_IMAGE" etc/number 2>&1)"
case "$said" in
    {{number}}) ;;
    "Could not open $WARMSTART_IMAGE, because No such file"*) echo "{NO_IMAGE}" ;;
    "Could not open $WARMSTART_IMAGE, because Transport endpoint"*) echo "{NO_IMAGE}" ;;
    *) echo "{WRONG}: the image says $said" ;;
esac"""
_REMOVE = 'tell removed "$ALPHA_CACHE/{a}"*.bin; rm -f "$ALPHA_CACHE/{a}"*.bin'
_BETA = 'entry "$BETA_CACHE/{a}/code" {a}'
# What each node shows before anybody has written.
_SHOW = """\
srun --ntasks-per-node=1 bash -c 'echo "node $SLURMD_NODENAME"; for file in "$ALPHA_CACHE"/*.bin; do
    [ ! -f "$file" ] || { read -r && read -r maker && echo "node $SLURMD_NODENAME $maker"; } <"$file"
done'"""
# Each node's tasks write where their variables say: a node may have nothing of warmstart's.
_WRITE = f"""\
srun --ntasks-per-node=1 bash -c 'for place in "$TMPDIR" "$WARMSTART_CACHE" "$ALPHA_CACHE"; do
    [ -z "$place" ] || {{ mkdir -p "$place" && touch "$place/wrote.$$" && rm "$place/wrote.$$"; }} ||
        echo "{WRONG}: $SLURMD_NODENAME cannot write in $place"
done'"""
_NAP = "sleep {nap}"
_ODD = """\
cd "$ALPHA_CACHE"
ln -s /etc/shadow link.bin
mkfifo pipe.bin
mkdir closed && touch closed/x.bin && chmod 0 closed
ln e*.bin hard.bin 2>/dev/null
touch "$(printf 'new\\nline.bin')"
chmod 0 .
"""
# What warmstart refuses, and the word that its sentence has.
_REFUSED = {
    "profiles=nope": "nope",
    "image=registry.invalid/a:1": "registry.invalid",
    "nonsense": "nonsense",
    **{words: refused for wing in OF_WINGS for words, refused in wing.refused.items()},
}


KINDS = {
    "uses its cache": Kind(30, (_USE, _NAP)),
    "has an image": Kind(14, (_IMAGE, _NAP), "image={image}"),
    "has an image and a profile": Kind(8, (_IMAGE, _USE, _BETA, _NAP), "image={image} profiles=beta"),
    "of two nodes": Kind(6, (_SHOW, _USE, _WRITE, _NAP), options=("--nodes=2",), anywhere=False),
    "array": Kind(5, (_USE, _NAP), options=("--array=0-2",), tasks=3),
    "heterogeneous": Kind(
        3,
        (_USE, f'srun --het-group=0,1 sh -c \'[ -d "$WARMSTART_CACHE" ]\' || echo "{NO_COMPONENT}"', _NAP),
        options=("--ntasks=1", ":", "--ntasks=1"),
        anywhere=False,
        tasks=2,
    ),
    "rewrites an entry": Kind(5, (_REMOVE.replace("*", ""), _USE, _NAP)),
    "removes entries": Kind(3, (_REMOVE, _NAP)),
    "starts fresh": Kind(3, (_USE, _NAP), "fresh"),
    "fails": Kind(5, (_USE, _NAP, f"echo {DONE}; exit 3"), ends="FAILED"),
    "asks for too much": Kind(6, (), "{refused}", ends="FAILED"),
    "leaves a process": Kind(3, (_USE, '(cd "$WARMSTART_CACHE"; env -i setsid sleep 20 >/dev/null 2>&1 &)')),
    "leaves odd files": Kind(3, (_USE, _ODD)),
    **{name: kind for wing in OF_WINGS for name, kind in wing.kinds.items()},
}


class Job(NamedTuple):
    """One submission."""

    kind: str
    user: str
    script: str
    options: tuple[str, ...]
    refused: str  # the word that the output has if warmstart refuses the job; "" where it does not
    image: str

    @property
    def ends(self) -> str:
        """The state in which it ends, if no fault hits it."""
        return KINDS[self.kind].ends


def mix(number: int, seed: int, images: Sequence[str]) -> Iterator[Job]:
    """Yield submissions that make at least `number` jobs. `images` may change in between."""
    dice = random.Random(seed)
    weights = [kind.weight for kind in KINDS.values()]
    made = 0
    while made < number:
        (name,) = dice.choices(list(KINDS), weights)
        made += KINDS[name].tasks
        yield _job(name, KINDS[name], dice, images)


def _job(name: str, kind: Kind, dice: random.Random, images: Sequence[str]) -> Job:
    image = dice.choice(images) if "{image}" in kind.asks else ""
    words, refused = dice.choice(list(_REFUSED.items())) if "{refused}" in kind.asks else ("", "")
    options = list(kind.options)
    if kind.anywhere and dice.random() < 0.5:
        options.insert(0, f"--nodelist=n{dice.randint(1, 4)}")
    if kind.anywhere and dice.random() < 0.2:
        options.insert(0, "--partition=ci")
    if kind.asks:
        options.insert(0, f"--comment=warmstart: {kind.asks.format(image=image, refused=words)}")
    names = {letter: f"e{dice.randrange(NAMES)}" for letter in "abc"}
    nap = f"{dice.uniform(0, 3):.1f}"
    text = "\n".join(kind.lines)
    number = re.sub(r".*/load(\d*).*|.*", r"\1", image)
    for key, value in {**names, "nap": nap, "number": number}.items():
        text = text.replace(f"{{{key}}}", value)
    script = "\n".join(["#!/bin/bash", _BEGIN.format(wrong=WRONG, without=WITHOUT), text, f"echo {DONE}", ""])
    return Job(name, dice.choice((ALICE, BOB)), script, tuple(options), refused, image)
