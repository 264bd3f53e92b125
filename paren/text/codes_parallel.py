"""Error codes of runs on several devices and nodes."""

from __future__ import annotations

from paren.text.code_registry import register

register(
    "E-DP-001",
    "the devices cannot be used",
    "PAREN_DEVICES does not parse, repeats an ordinal or names one that is not visible; or no GPU is visible; or there "
    "are more ranks on a node than visible GPUs.",
    "List visible ordinals once each, PAREN_DEVICES=0,1; one rank for each.",
)
register(
    "E-DP-002",
    "another layout wrote the checkpoint",
    "A resume's number of ranks or nodes, or the type of gradients between nodes, is not the checkpoint's; the message "
    "names both.",
    "Resume with the checkpoint's ranks, nodes and PAREN_NODE_GRADIENTS, or accept other bits with --allow-new-layout.",
)
register(
    "E-DP-003",
    "the microbatches do not divide over the ranks",
    "Each rank takes the same number of microbatches of a global batch.",
    "Take one of the numbers of ranks that the message names, or another :microbatches.",
)
register(
    "E-DP-004",
    "the ranks disagree about the state",
    "The ranks' parameters or optimizer state differ at a checkpoint. It is not written.",
    "Continue with --resume latest from the one before. It is a fault of paren or of a device, not of the experiment: "
    "report it with the step and PAREN_DEVICES.",
)
register(
    "E-DP-005",
    "a variable of the nodes is wrong",
    "PAREN_NODES is no count, PAREN_NODE_RANK is not in 0..nodes, PAREN_RENDEZVOUS is not host:port, "
    "PAREN_RENDEZVOUS_TIMEOUT, PAREN_STEP_TIMEOUT or PAREN_WORK_TIMEOUT is no number of seconds, or "
    "PAREN_NODE_GRADIENTS is not f32 or bf16; or one is missing.",
    "Set PAREN_NODES, PAREN_NODE_RANK and PAREN_RENDEZVOUS on every node.",
)
register(
    "E-DP-006",
    "a node differs from node 0",
    "At the rendezvous a node has another number of nodes, another node's index, other devices, another experiment, "
    "another gradient type, another checkpoint or other joined products (see docs/precision.md) than node 0; the "
    "message names both.",
    "Start every node with the same file, settings, options, device count, packages and checkpoints.",
)
register(
    "E-DP-007",
    "a node is missing",
    "A node did not arrive at the rendezvous in time, or left the run; the message names it.",
    "Start every node; after a loss, restart every node with --resume latest.",
)
register(
    "E-DP-008",
    "a rank failed",
    "A rank ended, stood still or raised an error; the message names its host, step and cause. Every rank stops.",
    "See to the cause, then continue with --resume latest.",
)
register(
    "E-DP-009",
    "two sources of ranks",
    "Ranks come from torchrun's variables, or from PAREN_NODES and PAREN_DEVICES, and the two contradict each other; "
    "or only some of torchrun's variables are set.",
    "Start with torchrun, or with paren alone and PAREN_NODES on every node.",
)
