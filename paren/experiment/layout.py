"""What lies where in the output root of a study, by name.

OUT/study.json                          what was launched last
OUT/launches/NNNNNN.json                which jobs each launch had
OUT/runs/CONFIGURATION/MEMBER/          a job: job.json, status.json, metrics.json, analysis.json, plots/PLOT/
OUT/runs/CONFIGURATION/plots/PLOT/      plots over a cohort
OUT/plots/PLOT/                         plots over the sweep
OUT/store/KIND/KEY/                     an artifact; KEY.partial/ a model in training
OUT/locks/                              who works on what
"""

from __future__ import annotations

from paren.train import run_directory

RUNS, PLOTS, STORE, LAUNCHES, LOCKS = "runs", "plots", "store", "launches", "locks"
STUDY, JOB, STATUS = run_directory.STUDY, "job.json", "status.json"
METRICS = "metrics.json"  # results of the analysis by name
ANALYSIS = "analysis.json"  # the keys that they were computed under
RECORD = "plot.json"  # the key that a plot was drawn under: null where its results have changed since
PARTIAL = ".partial"  # behind the key of a model in training
