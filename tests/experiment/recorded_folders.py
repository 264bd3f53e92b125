"""Folders as a run and a study leave them, written without training: what `results` and `report` read."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from paren.text.json import Json
from paren.train.files import json_bytes
from paren.train.metrics import MetricsWriter

BEGIN = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)
VERSIONS = {"paren": "0.1.0", "numpy": "2.4.6", "llvmlite": "0.50.0", "python": "3.11.7"}
TEXT = "; a network\n(def rate 0.001)\n"
TRACEBACK = (
    'Traceback (most recent call last):\n  File "analysis.py", line 7, in coverage\nValueError: no <b>rows</b>\n'
)


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json_bytes(content, indent=1))


def time(minutes: float) -> str:
    return (BEGIN + timedelta(minutes=minutes)).isoformat(timespec="seconds")


def write_run(
    folder: Path,
    settings: Mapping[str, Json],
    *,
    seed: int = 0,
    steps: int = 600,
    state: str = "complete",
    done: int | None = None,
    rate: float = 1e-3,
    program: str = "ratio.paren",
    minutes: float = 0.0,
    series: Sequence[str] = (),
) -> None:
    """A run that has done `done` of its steps: a falling, noisy loss, evaluated every tenth of the steps."""
    folder.mkdir(parents=True, exist_ok=True)
    done = steps if done is None else done
    sources = {program: {"sha256": hashlib.sha256(TEXT.encode()).hexdigest(), "text": TEXT}}
    run: dict[str, object] = {"format": 1, "run": f"{seed:016x}", "experiment": "e" * 64, "program": program}
    run |= {"variant": None, "settings": dict(settings), "seed": seed, "batch": 64, "microbatches": 1}
    run |= {"precision": "off", "steps": steps, "identity": {"device": "cpu", "ranks": 1, "stacking": 1}}
    run |= {"versions": VERSIONS, "created": time(minutes), "sources": sources}
    write_json(folder / "run.json", run)
    status = {"state": state, "step": done, "steps": steps, "samples": 64 * done, "started": time(minutes)}
    status |= {"updated": time(minutes + 1.5), "phase": None, "code": None, "message": None}
    write_json(folder / "status.json", status)
    noise = np.random.default_rng(seed)
    floor = 0.2 + 0.05 * abs(math.log10(rate / 2e-3)) + 0.01 * noise.standard_normal()
    with MetricsWriter(folder / "metrics.jsonl", 0) as writer:
        writer.annotate(0, "memory", parameters=320, gradients=320, optimizer=640, live=8448, planned=9728)
        for step in range(1, done + 1):
            loss = floor + 0.5 * math.exp(-step * rate * 8) + 0.02 * abs(noise.standard_normal())
            record: dict[str, Json] = {"step": step, "loss": loss, "gradient-norm": loss * 2, "rate": rate}
            if step % max(1, steps // 10) == 0:
                record["evaluation/loss"] = loss * 1.03
                record["evaluation/accuracy"] = 1 - loss / 2
            record |= {name: float(noise.random()) for name in series}
            record |= {"examples-per-second": 1e6, "runtime/step-ms": 0.3 + 0.01 * noise.random()}
            writer.write({**record, "runtime/peak_bytes": 9000 + step})


def declare(out: Path, *names: str, kind: str = "metric") -> None:
    """Lets the study have further metrics, or plots."""
    study = json.loads((out / "study.json").read_bytes())
    study["analyses"] += [{"kind": kind, "name": name, "over": None} for name in names]
    write_json(out / "study.json", study)


def write_study(
    out: Path,
    *,
    sweep: Mapping[str, Sequence[Json]],
    cohort: Mapping[str, Sequence[Json]],
    settings: Mapping[str, Json],
    steps: int = 100,
    program: str = "ratio.paren",
    plots: bool = True,
) -> list[Path]:
    """A study whose jobs are all done: one factor at a time, crossed with the cohort. Gives the jobs' folders."""
    sources = {program: {"sha256": hashlib.sha256(TEXT.encode()).hexdigest(), "text": TEXT}}
    study: dict[str, object] = {"format": 1, "program": program, "variant": "smoke", "overrides": {"steps": steps}}
    study |= {
        "sources": sources,
        "versions": VERSIONS,
        "created": time(0),
        "sweep": sweep,
        "cohort": cohort,
        "grid": {},
    }
    plots_over = {"posterior": None, "summary": "sweep", "corner": "cohort"}
    study |= {"analyses": [{"kind": "plot", "name": name, "over": over} for name, over in plots_over.items()]}
    write_json(out / "study.json", study)
    declare(out, *_metrics(0, 1e-3), "later")
    changes: list[dict[str, Json]] = [{}, *({name: value} for name, values in sweep.items() for value in values)]
    members = [dict(zip(cohort, values, strict=True)) for values in itertools.product(*cohort.values())]
    jobs = []
    for order, (changed, member) in enumerate(itertools.product(changes, members)):
        values = {**settings, **changed, **member}
        digest = hashlib.sha256(json.dumps(changed).encode()).hexdigest()[:12]
        folder = out / "runs" / f"{_folder(changed) or 'baseline'}-{digest}" / (_folder(member) or "all")
        key = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]
        rate = values.get("rate")
        rate = rate if isinstance(rate, float) else 1e-3
        write_run(out / "store/model" / key, values, seed=order, steps=steps, rate=rate, program=program, minutes=order)
        job: dict[str, object] = {"format": 1, "order": order, "settings": values, "changed": changed, "member": member}
        job |= {"model": f"../../../store/model/{key}", "data": None, "products": {}, "program": program}
        write_json(folder / "job.json", job)
        status = {"state": "done", "stage": None, "started": time(order), "updated": time(order + 1.7)}
        write_json(folder / "status.json", {**status, "seconds": {"training": 90.0, "coverage": 12.0}})
        write_json(folder / "metrics.json", _metrics(order, rate))
        if plots:
            write_drawing(folder / "plots/posterior/posterior.svg", f"job {order}")
        jobs.append(folder)
    if plots:
        write_drawing(out / "plots/summary/widths.svg", "sweep")
        write_png(out / "plots/summary/map.png", 24)
        write_drawing(jobs[0].parent / "plots/corner/corner.svg", "cohort")
    return jobs


def _metrics(seed: int, rate: float) -> dict[str, Json]:
    noise = np.random.default_rng(seed)
    excess = 0.002 * abs(math.log10(rate / 2e-3)) + 0.0005 * noise.random()
    joint: dict[str, Json] = {"68": 0.68 + 0.02 * noise.standard_normal(), "95.4": 0.95}
    return {"excess": excess, "coverage": {"joint": joint, "modes": [1, 2]}, "undefined": None}


def _folder(values: Mapping[str, Json]) -> str:
    text = ",".join(f"{name}-{value}" for name, value in values.items())
    return "".join(character if character.isalnum() or character in "-_.,=" else "_" for character in text)


def mark_failed(job: Path, *, stage: str = "analyze") -> None:
    status: dict[str, object] = {"state": "failed", "stage": stage, "code": "E-STUDY-010"}
    status |= {"message": "coverage raised ValueError: no <b>rows</b>", "traceback": TRACEBACK}
    write_json(job / "status.json", {**status, "started": time(3), "updated": time(4)})
    (job / "metrics.json").unlink(missing_ok=True)


def mark_waiting(job: Path) -> None:
    """A job whose turn has not come: nothing of it is there but its two files."""
    content = json.loads((job / "job.json").read_text("utf-8"))
    model = Path(os.path.normpath(job / content["model"]))
    for path in sorted(model.iterdir()):
        path.unlink()
    model.rmdir()
    (job / "metrics.json").unlink(missing_ok=True)
    write_json(job / "status.json", {"state": "waiting"})


def write_drawing(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 120" width="200" height="120">'
        f'<path d="M10 110L60 40L110 70L190 15" fill="none" stroke="#336"/><text x="14" y="20">{text}</text></svg>',
        encoding="utf-8",
    )


def write_png(path: Path, size: int) -> None:
    """A square of one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (b"\x00" + b"\x80" * size) * size
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
