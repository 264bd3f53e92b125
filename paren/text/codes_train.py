"""Error codes of runs, checkpoints, first weights, and numbers that are not finite."""

from __future__ import annotations

from paren.text.code_registry import register

register(
    "E-RUN-001",
    "an unfinished run is there",
    "The output directory holds this experiment, not finished, and neither --resume nor --overwrite was given.",
    "Go on with --resume latest, or start anew with --overwrite.",
)
register(
    "E-RUN-002",
    "another experiment is there",
    "The output directory holds a run of other sources, settings or data.",
    "Take another --out, or delete what is there with --overwrite.",
)
register(
    "E-RUN-003",
    "files that belong to no run",
    "The output directory holds a file that a run would write, but no run.json.",
    "Take another --out.",
)
register(
    "E-RUN-004",
    "the run directory is in use",
    "Another live process holds the lock of the output directory; the message names its host, id and start.",
    "Wait until it ends, stop it, or take another --out. The lock of a dead process is taken over by itself.",
)
register(
    "E-RUN-005",
    "a folder is not writable",
    "The output or checkpoint folder refused a small test file before step 1.",
    "Take another --out, or make the folder writable.",
)
register(
    "E-RUN-006",
    "not enough disk space",
    "The disk has less room than the checkpoints of the run need, which is known before step 1.",
    "Make room, take another --out or --checkpoints, or keep fewer checkpoints.",
)
register(
    "E-RUN-007",
    "no steps, or too many",
    "The experiment has no step, or --steps is 0, negative, or more than the experiment has.",
    "Give a number of steps between 1 and the experiment's; change :steps or :epochs to train longer.",
)
register(
    "E-RUN-008",
    "--overwrite with --resume",
    "One deletes what the other goes on from.",
    "Give one of them.",
)
register(
    "E-RUN-009",
    "nothing was trained",
    "All steps were consumed without an optimizer update: each batch had weight 0, or was skipped.",
    "Look at the loss weights and at the data.",
)
register(
    "E-RUN-010",
    "run.json is damaged",
    "The file that says which run stands in the directory cannot be read.",
    "Take another --out, or delete the directory.",
)
register(
    "E-RUN-011",
    "tensorboard is missing",
    "--tensorboard writes event files with the package tensorboard, which is not installed.",
    "Install it: pip install 'paren[tensorboard]'.",
)
register(
    "E-RUN-012",
    "a file of the run cannot be written",
    "The disk refused a line of metrics or the final status, mostly because it is full.",
    "Make room, then continue with --resume latest.",
)
register(
    "E-RUN-013",
    "no split to evaluate on",
    "The program asks for evaluations, the best parameters or early stopping, and the data have one split only.",
    "Give the data a second split.",
)
register(
    "E-RUN-014",
    "not a run that can be read",
    "The directory holds no run, or its metrics, or the results of a study, are missing or damaged.",
    "Give the directory of a run.",
)
register(
    "E-RUN-015",
    "checkpoints of another run",
    "The folder of --checkpoints holds the checkpoints of another run, whose places this run's would take.",
    "Take one folder for each run.",
)
register(
    "E-RUN-016",
    "the run folder is gone",
    "The folder of the run, or the lock in it, was deleted or replaced by another while the run wrote to it: what it "
    "would write from then on would be of no use, and another run could begin there.",
    "Start again. To begin a run anew in the same place, stop the first one, then use --overwrite.",
)
register(
    "E-RUN-017",
    "a study and a single run in one folder",
    "The output directory of a single run holds a study, or that of a study holds a single run. Tables and pages would "
    "show one of them only.",
    "Take another --out: `paren run FILE --single` and `paren run FILE` have the same one unless it is given.",
)
register(
    "E-CKPT-001",
    "nothing to resume from",
    "--resume was asked for, and there is no run or no checkpoint; the run does not start from scratch silently.",
    "Start without --resume, or with --resume auto, which starts if there is nothing to resume.",
)
register(
    "E-CKPT-002",
    "no such checkpoint",
    "--resume names a checkpoint that does not exist, or a folder that is none.",
    "Name one of those that the message lists, or use --resume latest.",
)
register(
    "E-CKPT-003",
    "a checkpoint is damaged",
    "A file of the named checkpoint is missing or its bytes do not match the manifest.",
    "Resume from another one; --resume latest takes the newest that is whole.",
)
register(
    "E-CKPT-004",
    "a checkpoint of another experiment",
    "The checkpoint was written by other sources, settings or data, so going on from it is not a resume.",
    "Resume with what it was trained with, or start from its weights with :from.",
)
register(
    "E-CKPT-005",
    "a checkpoint of another format",
    "The checkpoint's format version is not the one that this paren reads.",
    "Resume it with the version of paren that wrote it.",
)
register(
    "E-CKPT-006",
    "other slots",
    "The checkpoint holds other parameters or optimizer state than the program, or of other types or shapes.",
    "Resume with the program and the version of paren that wrote it.",
)
register(
    "E-CKPT-007",
    "another device or layout",
    "The checkpoint was written on a device or layout with other bits, or with other joined products "
    "(docs/precision.md), so the resume would not be exact.",
    "Resume on the same device and layout, with the same packages and as much memory, or accept other bits with "
    "--allow-new-layout.",
)
register(
    "E-CKPT-008",
    "a checkpoint cannot be saved",
    "The disk is full, read-only or failing; the message gives the path, the bytes needed and the bytes free. "
    "The checkpoint before is intact.",
    "Make room or make the folder writable, then continue with --resume latest.",
)
register(
    "E-CKPT-009",
    "parameters that are not finite",
    "A parameter became nan or infinite in an update; such a state is never published as a checkpoint.",
    "Resume from an earlier checkpoint with a smaller rate or with :clip.",
)
register(
    "E-CKPT-010",
    "no checkpoint is whole",
    "Every checkpoint of the run is damaged or of another format.",
    "Start anew with --overwrite.",
)
register(
    "E-CKPT-011",
    "a checkpoint of another run",
    "--resume names a checkpoint of one run, and --out holds another run of the same experiment.",
    "Resume it into a new --out.",
)
register(
    "E-CKPT-012",
    "metrics are missing",
    "metrics.jsonl is shorter than it was when the checkpoint was written, so lines would be missing.",
    "Put the file back, or resume into another folder.",
)
register(
    "E-NUM-001",
    "a value is not finite",
    "The loss or the gradient of a step is nan or infinite; the message names the operation that made it first.",
    "A smaller rate or :clip may help; :on-nonfinite skip leaves such steps out.",
)
register(
    "E-NUM-002",
    "too many steps skipped",
    "More steps in a row than :skip-limit had a loss or gradient that is not finite.",
    "Resume from an earlier checkpoint with a smaller rate or with :clip.",
)
register(
    "E-NUM-003",
    "negative loss weights",
    "The weights of a batch sum to less than 0, so there is no mean.",
    "Make :weight give values of 0 or more.",
)
register(
    "E-START-001",
    "first weights cannot be read",
    "The file of :from does not exist, cannot be read, or is no safetensors file.",
    "Name a safetensors file, relative to the program's file.",
)
register(
    "E-START-002",
    "first weights do not fit",
    "A parameter has no tensor of its name, type and shape in the file of :from.",
    "Name the tensors that are called otherwise in the file; convert other types before.",
)
register(
    "E-S3-001",
    "botocore is missing",
    "Checkpoints on s3:// are read and written with the package botocore, which is not installed.",
    "Install it: pip install 'paren[s3]'.",
)
register(
    "E-S3-002",
    "no place for checkpoints",
    "What was given as a place is neither a folder nor s3://BUCKET/PREFIX.",
    "Write s3://BUCKET/PREFIX, as text and not as a Path, without credentials in it.",
)
register(
    "E-S3-003",
    "credentials for a bucket",
    "No credentials were found, or the store does not accept them. The message never shows them.",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; see docs/object-storage.md.",
)
register(
    "E-S3-004",
    "no such bucket",
    "The store has no bucket of that name.",
    "Create the bucket, name another, or set AWS_ENDPOINT_URL to the store that has it.",
)
register(
    "E-S3-005",
    "no right on a bucket",
    "The store refuses an operation to these credentials; the message names bucket, key and operation.",
    "Allow ListBucket, GetObject, PutObject, DeleteObject and AbortMultipartUpload on the bucket and prefix.",
)
register(
    "E-S3-006",
    "the store does not answer",
    "The endpoint could not be reached, or kept failing, for 20 s before step 1 or for 5 minutes after it.",
    "See to the network and to AWS_ENDPOINT_URL, then go on with --resume auto.",
)
register(
    "E-S3-007",
    "the store refused",
    "An operation failed in a way that trying again does not change; the message has the store's own code for it.",
    "See docs/object-storage.md for what paren asks of a store.",
)
