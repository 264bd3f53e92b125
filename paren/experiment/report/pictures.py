"""The plots of a study, put into the page as data, up to a limit of size."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paren.experiment.layout import PLOTS, RECORD
from paren.experiment.report.html import Html, element, join
from paren.experiment.results.recorded import Recorded
from paren.text.size import count_of, show_bytes
from paren.train.files import read_object

# Bytes of one picture as it lies on the disk, and of all together as they are embedded.
LARGEST, MOST = 4 << 20, 32 << 20
_SMALL_DRAWING = 400 << 10  # up to here a drawing is taken and not its picture in points
_KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
_EFFORT = {"method": 1, "quality": 20}  # of packing: a third of the time of the default, within a tenth of its size
_WIDE = 2.0  # a picture this much wider than high gets twice the room
_FOLD = 12  # pictures of one plot that are shown without being asked for


@dataclass(frozen=True)
class _Picture:
    """One figure of a plot, in the formats there are; `job` is its number, None for a plot over several jobs."""

    plot: str
    title: str
    files: dict[str, Path]
    job: int | None


def pictures(recorded: Recorded) -> Html | None:
    """All plots: those over the sweep first, then those over a cohort, then those of jobs. None without plots."""
    sections = [
        ("Over the sweep", _of_folder(recorded, recorded.out, "sweep", "", None) if recorded.is_study else []),
        ("Over the cohort", _of_configurations(recorded)),
        ("Of each job" if recorded.is_study else "", _of_jobs(recorded)),
    ]
    left = MOST
    left_out: list[tuple[Path, int]] = []
    parts: list[Html] = []
    for title, found in sections:
        plots: dict[str, list[Html]] = {}
        for picture in found:
            shown, used = _embed(recorded, picture, left, left_out)
            left -= used
            if shown is not None:
                plots.setdefault(picture.plot, []).append(shown)
        if plots:
            parts.append(join(element("h3", title) if title else None, *(_gallery(*each) for each in plots.items())))
    if left_out:
        parts.append(_missing(recorded, left_out))
    return join(*parts) if parts else None


def _of_configurations(recorded: Recorded) -> list[_Picture]:
    found = []
    for folder in dict.fromkeys(job.folder.parent for job in recorded.jobs if recorded.is_study):
        jobs = [job for job in recorded.jobs if job.folder.parent == folder]
        title = jobs[0].label.partition(" · ")[0]
        found += _of_folder(recorded, folder, "cohort", title, None)
    return sorted(found, key=lambda picture: picture.plot)


def _of_jobs(recorded: Recorded) -> list[_Picture]:
    found = [
        picture
        for number, job in enumerate(recorded.jobs)
        for picture in _of_folder(recorded, job.folder, None, job.label if recorded.is_study else "", number)
    ]
    return sorted(found, key=lambda picture: picture.plot)


def _of_folder(recorded: Recorded, holder: Path, over: str | None, title: str, job: int | None) -> list[_Picture]:
    """The figures below `plots/PLOT/` of a folder, by plot and stem: of the plots `over` that which the study has."""
    found = []
    folder, declared = holder / PLOTS, recorded.declared("plot")
    plots = sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    for plot in plots:
        if declared is not None and declared.get(plot.name, "") != over:
            continue
        earlier = "as drawn before a change" if _is_outdated(plot) else ""
        stems: dict[str, dict[str, Path]] = {}
        for path in sorted(plot.iterdir()):
            if path.suffix in (*_KINDS, ".pdf") and path.is_file() and not path.name.startswith("."):
                stems.setdefault(path.stem, {})[path.suffix] = path
        for stem, files in stems.items():
            named = " · ".join(filter(None, [title, stem if len(stems) > 1 or stem != plot.name else "", earlier]))
            found.append(_Picture(plot.name, named, files, job))
    return found


def _is_outdated(plot: Path) -> bool:
    record = read_object(plot / RECORD)
    return record is not None and record.get("key") is None


def _embed(
    recorded: Recorded, picture: _Picture, left: int, left_out: list[tuple[Path, int]]
) -> tuple[Html | None, int]:
    """The figure with its picture, and the bytes it took; what is too large is noted."""
    sizes = {kind: path.stat().st_size for kind, path in picture.files.items()}
    kinds = [kind for kind in _KINDS if kind in sizes]
    if len(kinds) == 2 and sizes[".svg"] > _SMALL_DRAWING:
        kinds.reverse()
    kind = next((kind for kind in kinds if sizes[kind] <= min(LARGEST, left)), None)
    if kind is None:
        first = (kinds or [".pdf"])[0]
        left_out.append((picture.files[first], sizes[first]))
        return None, 0
    path = picture.files[kind]
    content, media = path.read_bytes(), _KINDS[kind]
    width, height = _png_size(content) if kind == ".png" else (None, None)
    smaller = _as_webp(content) if kind == ".png" else None
    if smaller is not None:
        content, media = smaller, "image/webp"
    data = base64.b64encode(content).decode("ascii")
    about = ": ".join(filter(None, [picture.plot, picture.title]))
    image = element("img", src=f"data:{media};base64,{data}", alt=about, width=width, height=height, loading="lazy")
    place = path.relative_to(recorded.out).as_posix()
    button = element("button", image, type="button", class_="enlarge", aria_label=f"enlarge {about}", title=place)
    caption = element("figcaption", picture.title) if picture.title else None
    is_wide = width is not None and height is not None and width > _WIDE * height
    style = "picture wide" if is_wide else "picture"
    return element("figure", button, caption, class_=style, data_j=picture.job), len(content)


def _as_webp(png: bytes) -> bytes | None:
    """The same points in about half the bytes; None where that is not smaller, or the picture cannot be read."""
    from PIL import Image  # which comes with matplotlib; a page without pictures does without

    written = io.BytesIO()
    try:
        with Image.open(io.BytesIO(png)) as image:
            if image.mode not in ("RGB", "RGBA"):
                return None
            image.save(written, "webp", lossless=True, exact=True, **_EFFORT)
    except (OSError, ValueError, KeyError):  # no picture, one that is too large, or a build without WebP
        return None
    return written.getvalue() if written.tell() < len(png) else None


def _png_size(content: bytes) -> tuple[int | None, int | None]:
    """Width and height in points, from the head of a PNG file."""
    if len(content) < 24 or content[12:16] != b"IHDR":
        return None, None
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def _gallery(plot: str, figures: Sequence[Html]) -> Html:
    grid = element("div", *figures, class_="pictures")
    if len(figures) <= _FOLD:
        return join(element("h4", plot), grid)
    count = element("span", count_of(len(figures), "figure"), class_="muted")
    return element("details", element("summary", plot, " ", count), grid, class_="fold")


def _missing(recorded: Recorded, left_out: Sequence[tuple[Path, int]]) -> Html:
    rows = [
        element("li", element("code", path.relative_to(recorded.out).as_posix()), f" ({show_bytes(size)})")
        for path, size in left_out
    ]
    limit = f"A page takes SVG and PNG of at most {show_bytes(LARGEST)} each and {show_bytes(MOST)} together."
    count = count_of(len(rows), "figure is", "figures are")
    return element(
        "details", element("summary", f"{count} left out"), element("p", limit), element("ul", *rows), class_="fold"
    )
