"""Error codes of studies and their jobs."""

from paren.text.code_registry import register

register(
    "E-JOB-001",
    "jobs of a study have failed",
    "Some jobs of a study could not be trained or analysed. They did not stop the others; each is named with its "
    "error, and its status.json has the traceback.",
    "Correct what the errors say and start again: finished jobs are kept, failed ones are tried again.",
)
register(
    "E-JOB-002",
    "jobs of a study were not finished",
    "Every worker of the study ended before all jobs were done; they were killed, or ran out of memory.",
    "Start again: finished jobs are kept, interrupted trainings go on from their checkpoints.",
)
register(
    "E-JOB-003",
    "workers where torchrun started some already",
    "`--workers` starts processes on this machine; under torchrun every process is a worker.",
    "Leave out `--workers`, or start without torchrun.",
)
register(
    "E-JOB-004",
    "an option of one training, given for a study",
    "`--steps`, `--resume`, `--overwrite`, `--checkpoints`, `--allow-new-layout` and `--profile` are for one training. "
    "The jobs of a study go on by themselves where they were interrupted.",
    "Leave the option out; with `--single` the file's own values are trained alone, as an ordinary run.",
)
register(
    "E-JOB-005",
    "a study under torchrun on several nodes without --parallel jobs",
    "The processes that torchrun starts on several nodes can take whole jobs, each on its own device; they cannot "
    "share each training of a study.",
    "Give `--parallel jobs`, or start torchrun on one node.",
)
register(
    "E-JOB-006",
    "options that contradict each other",
    "`--workers` lets processes take jobs side by side; `--parallel ddp` trains one model after another on all "
    "devices.",
    "Give one of them.",
)
register(
    "E-JOB-007",
    "workers for a single training",
    "`--workers` and `--parallel jobs` share out the jobs of a study; the file declares none.",
    "Declare a defsweep, defcohort or defgrid, or leave the option out.",
)
register(
    "E-JOB-008",
    "jobs without a trained model",
    "`paren analyze` trains nothing: it takes models that are there, whatever device trained them. Jobs that have one "
    "were analysed; those named have none.",
    "Train them with `paren train`, or both with `paren run`.",
)
register(
    "E-JOB-009",
    "a worker process ended in a job",
    "The process that worked at the job ended by what the job did: a function called `os._exit`, a library crashed "
    "(SIGSEGV, SIGABRT), or it was killed twice in the same job, as happens where memory runs out. The other jobs went "
    "on in another process.",
    "Look at the function of the stage that `status.json` names; for memory, take fewer `--workers`. Starting again "
    "tries the job again. Without `--workers` the jobs run in the process of the launch, which such a job ends: then "
    "`--workers 1` lets the others go on.",
)
