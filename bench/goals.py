"""The ratios that paren is to reach, and the judgement of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.watch import Outcome
from bench.workloads.sizes import LanguageModel, Network, Workload

DISTURBED = 0.05  # cores that something else used while a contestant was timed
MEMORY_PEERS = ("torch", "jax")


@dataclass(frozen=True)
class Goal:
    """`time`: seconds of a unit against the fastest peer. `memory`: peak against the leanest of torch and JAX. `cold`
    and `warm`: seconds from the start of the process to the beginning of the first step, without and with a cache of
    compiled kernels."""

    time: float
    memory: float
    cold: float | None = None
    warm: float | None = None


GOALS = {
    "W1": Goal(0.85, 0.75, cold=3.0, warm=1.5),
    "W2": Goal(0.50, 0.80),
    "W3": Goal(0.55, 1.0, warm=1.5),
    "W4": Goal(0.35, 1.0, warm=1.5),
    "W5": Goal(0.75, 0.50),
}
CARD_GOALS = {"W6": Goal(0.90, 0.80)}


@dataclass(frozen=True)
class Summary:
    """A contestant's rounds as one: the median of its rounds' medians, and how far apart those are.

    `least`: the fastest unit of all. `spread`: (largest - smallest) / median of the rounds' medians. `began` and
    `first`: since the start of the process, in the first round (`cold`) and the median of the others (`warm`, None if
    there was one round). `processor`: seconds of processor time of a unit, over all threads. `others`: of the most
    disturbed round. `disagrees`: why its losses are not the others'.
    """

    name: str
    rounds: int
    seconds: float
    least: float
    spread: float
    peak: int
    anonymous: int
    began_cold: float
    first_cold: float
    began_warm: float | None
    first_warm: float | None
    processor: float
    busy: float
    others: float
    disturbed: int
    losses: tuple[float, ...]
    disagrees: str = ""


def summarise(name: str, outcomes: Sequence[Outcome]) -> Summary:
    """One line from the rounds, in their order."""
    medians = [median(outcome.seconds) for outcome in outcomes]
    middle = median(medians)
    later = outcomes[1:]
    return Summary(
        name=name,
        rounds=len(outcomes),
        seconds=middle,
        least=min(min(outcome.seconds) for outcome in outcomes),
        spread=(max(medians) - min(medians)) / middle,
        peak=round(median(_peak(outcome) for outcome in outcomes)),
        anonymous=round(median(outcome.anonymous for outcome in outcomes)),
        began_cold=outcomes[0].began,
        first_cold=outcomes[0].first,
        began_warm=median(outcome.began for outcome in later) if later else None,
        first_warm=median(outcome.first for outcome in later) if later else None,
        processor=median(outcome.busy * fmean(outcome.seconds) for outcome in outcomes),
        busy=median(outcome.busy for outcome in outcomes),
        others=max(outcome.others for outcome in outcomes),
        disturbed=sum(outcome.others > DISTURBED for outcome in outcomes),
        losses=outcomes[0].losses,
    )


def _peak(outcome: Outcome) -> int:
    """The most memory of the card that runs, or of the process."""
    on_card = outcome.more.get("card_peak")
    return on_card if isinstance(on_card, int) else outcome.peak


def disagreement(workload: Workload, losses: Sequence[float], reference: Sequence[float]) -> str:
    """Why a contestant's losses are not those of the same work; empty if they are.

    The first three losses of language models must agree with the reference. W4's last one must be near its known end.
    """
    if isinstance(workload, Network):
        off = abs(losses[-1] - workload.final)
        return f"ends at {losses[-1]:.4f}, not {workload.final}" if off > workload.agreement else ""
    for number, (own, other) in enumerate(zip(losses[:3], reference[:3], strict=True)):
        if not abs(own - other) <= workload.agreement:
            return f"loss {number + 1} is {own:.5f}, not {other:.5f}"
    return ""


def floor_of(workload: Workload, limits: Mapping[str, float]) -> float:
    """Seconds of a unit if there were only its products, at the highest rate that this machine reached."""
    rates = [limits["float32 products, GFLOP/s"]]
    if isinstance(workload, LanguageModel) and workload.bfloat16:
        rates.append(limits["bfloat16 products, GFLOP/s"])
    return workload.flops / max(rates) / 1e9


@dataclass(frozen=True)
class Verdict:
    """One ratio: `value` against `goal`, with what it is a ratio of."""

    what: str
    value: float
    goal: float
    against: str

    @property
    def reached(self) -> bool:
        return self.value <= self.goal


def judge(workload: Workload, paren: Summary, peers: Sequence[Summary], device: str = "cpu") -> list[Verdict]:
    """The verdicts on a workload, where it has goals on the device; peers that do other work do not count."""
    goals = GOALS if device == "cpu" else CARD_GOALS
    if workload.name not in goals:
        return []
    goal = goals[workload.name]
    same = [peer for peer in peers if not peer.disagrees]
    found = []
    if same:
        fastest = min(same, key=lambda peer: peer.seconds)
        found.append(Verdict("time", paren.seconds / fastest.seconds, goal.time, fastest.name))
    lean = [peer for peer in same if peer.name.startswith(MEMORY_PEERS)]
    if lean:
        leanest = min(lean, key=lambda peer: peer.peak)
        found.append(Verdict("memory", paren.peak / leanest.peak, goal.memory, leanest.name))
    if goal.cold is not None:
        found.append(Verdict("cold start, s", paren.began_cold, goal.cold, ""))
    if goal.warm is not None and paren.began_warm is not None:
        found.append(Verdict("warm start, s", paren.began_warm, goal.warm, ""))
    return found
