"""Optimizers of the prelude do the updates of torch.optim; schedules have the values that their texts say."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from small_programs import load

from paren.ir.evaluate import evaluate
from paren.ir.program import Program, UpdateGroup
from paren.text.errors import ParenError

MODEL = """
(defdata d (python "f.py" g :fields ((x float32 [4]))))
(defmodel m ((x float32 [4])) (sum (+ (matmul x (param w [4 6] :init 1)) (param b [6] :init 0))))
(defrun :data d :loss (m x) :optimizer {optimizer} :batch 2 :steps 1 {more})
"""


def made_with(optimizer: str, more: str = "") -> Program:
    return load(MODEL.format(optimizer=optimizer, more=more))


def apply(group: UpdateGroup, state: dict[str, dict[str, np.ndarray]], gradients: dict, update: int) -> float | None:
    """One update of a group in place; gives the rate."""
    parts = [group.parameters] if group.flat else [(name,) for name in group.parameters]
    rate = None
    for names in parts:
        graph = group.graphs["" if group.flat else names[0]]

        def joined(values: dict[str, np.ndarray], names: tuple[str, ...] = names) -> np.ndarray:
            return np.concatenate([values[n].ravel() for n in names]) if group.flat else values[names[0]]

        inputs = {key: joined(state[key]) for key in ("parameter", *group.moments)}
        inputs |= {"gradient": joined(gradients), "update": np.float32(update).reshape(())}
        outputs = evaluate(graph, inputs)
        rate = float(outputs["rate"]) if "rate" in outputs else None
        for key in ("parameter", *group.moments):
            flat = outputs[key].ravel()
            for name in names:
                size = state[key][name].size
                state[key][name] = flat[:size].reshape(state[key][name].shape)
                flat = flat[size:]
    return rate


def run(made: Program, steps: int) -> dict[str, np.ndarray]:
    """The parameters after some updates from fixed gradients."""
    generator = np.random.default_rng(0)
    values = {s.name: generator.normal(size=s.type.shape).astype(np.float32) for s in made.parameters}
    state: dict[str, dict[str, np.ndarray]] = {"parameter": values}
    for slot in made.moments:
        parameter, _, moment = slot.name.rpartition("/")
        state.setdefault(moment, {})[parameter] = np.zeros(slot.type.shape, np.float32)
    for update in range(1, steps + 1):
        gradients = {name: generator.normal(size=v.shape).astype(np.float32) for name, v in sorted(values.items())}
        for group in made.updates:
            apply(group, state, gradients, update)
    return state["parameter"]


def torch_run(
    make: Callable[[list[dict]], list[torch.optim.Optimizer]], steps: int, made: Program, transposed: bool = False
) -> dict[str, np.ndarray]:
    """The same updates by torch, whose linear layers store matrices transposed."""

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        array = generator.normal(size=shape).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(array.T if transposed else array))

    generator = np.random.default_rng(0)
    shapes = {s.name: s.type.shape for s in made.parameters}
    values = {name: torch.nn.Parameter(draw(shape)) for name, shape in shapes.items()}
    optimizers = make([{"params": [values["w"]]}, {"params": [values["b"]], "weight_decay": 0.0}])
    for _ in range(steps):
        for name, value in sorted(values.items()):
            value.grad = draw(shapes[name])
        for optimizer in optimizers:
            optimizer.step()
    return {name: value.detach().numpy().T if transposed else value.detach().numpy() for name, value in values.items()}


CASES: dict[str, tuple[str, Callable[[list[dict]], list[torch.optim.Optimizer]]]] = {
    "adam": ("(adam)", lambda g: [torch.optim.Adam(g)]),
    "adam with decay": (
        "(adam :rate 0.02 :betas [0.8 0.95] :epsilon 1e-6 :weight-decay 0.3)",
        lambda g: [torch.optim.Adam(g, 0.02, (0.8, 0.95), 1e-6, 0.3)],
    ),
    "adamw": ("(adamw)", lambda g: [torch.optim.AdamW(g)]),
    "adamw with decay": (
        "(adamw :rate 0.02 :betas [0.8 0.95] :weight-decay 0.3)",
        lambda g: [torch.optim.AdamW(g, 0.02, (0.8, 0.95), 1e-8, 0.3)],
    ),
    "sgd": ("(sgd :rate 0.1)", lambda g: [torch.optim.SGD(g, 0.1)]),
    "sgd with decay": ("(sgd :rate 0.1 :weight-decay 0.2)", lambda g: [torch.optim.SGD(g, 0.1, weight_decay=0.2)]),
    "momentum": (
        "(sgd :rate 0.1 :momentum 0.9 :weight-decay 0.2)",
        lambda g: [torch.optim.SGD(g, 0.1, 0.9, weight_decay=0.2)],
    ),
    "nesterov": (
        "(sgd :rate 0.1 :momentum 0.9 :nesterov true)",
        lambda g: [torch.optim.SGD(g, 0.1, 0.9, nesterov=True)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_are_torchs(name: str) -> None:
    """Ten updates; weight decay is off for the vector by default, as the torch groups here."""
    text, make = CASES[name]
    made = made_with(text)
    assert all(group.flat for group in made.updates)
    found, wanted = run(made, 10), torch_run(make, 10, made)
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("nesterov", ["true", "false"])
def test_muon_is_torchs_in_the_precision_of_its_products(nesterov: str) -> None:
    """torch multiplies in bfloat16 and stores matrices as [outputs inputs]; vectors get adamw."""
    made = made_with(f"(muon :rate 0.05 :nesterov {nesterov})")
    assert [(group.flat, group.parameters) for group in made.updates] == [(False, ("w",)), (True, ("b",))]

    def make(groups: list[dict]) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Muon(groups[:1], 0.05, nesterov=nesterov == "true", adjust_lr_fn="original"),
            torch.optim.AdamW(groups[1:], 0.05),
        ]

    found = run(made, 5)
    wanted = torch_run(make, 5, made, transposed=True)
    np.testing.assert_allclose(found["b"], wanted["b"], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found["w"], wanted["w"], atol=0.02)


def test_muon_makes_singular_values_equal() -> None:
    """From zero parameters the step is rate x sqrt(outputs / inputs) x a matrix whose singular values are near 1."""
    made = made_with("(muon :rate 1.0 :weight-decay 0.0 :momentum 0.0)")
    (group, _) = made.updates
    gradient = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    state = {"parameter": {"w": np.zeros((4, 6), np.float32)}, "velocity": {"w": np.zeros((4, 6), np.float32)}}
    apply(group, state, {"w": gradient}, 1)
    singular = np.linalg.svd(state["parameter"]["w"], compute_uv=False) / math.sqrt(6 / 4)
    assert ((singular > 0.6) & (singular < 1.3)).all()


def test_lion_by_its_definition() -> None:
    found = run(made_with("(lion :rate 0.01 :betas [0.8 0.9] :weight-decay 0.1)"), 4)
    generator = np.random.default_rng(0)
    values = {"w": generator.normal(size=(4, 6)), "b": generator.normal(size=6)}
    mean = {name: np.zeros_like(value) for name, value in values.items()}
    for _ in range(4):
        for name in sorted(values):
            gradient = generator.normal(size=values[name].shape)
            decay = 0.1 if name == "w" else 0.0
            step = np.sign(0.8 * mean[name] + 0.2 * gradient)
            values[name] = values[name] * (1 - 0.01 * decay) - 0.01 * step
            mean[name] = 0.9 * mean[name] + 0.1 * gradient
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def rates(schedule: str, updates: list[int]) -> list[float]:
    made = made_with(f"(sgd :rate {schedule})")
    (group,) = made.updates
    state = {"parameter": {"w": np.zeros((4, 6), np.float32), "b": np.zeros(6, np.float32)}}
    found = []
    for update in updates:
        rate = apply(group, state, {name: np.zeros_like(v) for name, v in state["parameter"].items()}, update)
        assert rate is not None
        found.append(rate)
    return found


@pytest.mark.parametrize(
    ("schedule", "updates", "wanted"),
    [
        ("0.25", [1, 9], [0.25, 0.25]),
        ("(constant 0.25)", [1, 9], [0.25, 0.25]),
        ("(linear-schedule 1.0 0.0 :until 11)", [1, 2, 6, 11, 40], [1.0, 0.9, 0.5, 0.0, 0.0]),
        ("(warmup-cosine 0.8 :warmup 4 :until 12)", [1, 2, 4, 8, 12, 99], [0.2, 0.4, 0.8, 0.4, 0.0, 0.0]),
        ("(warmup-cosine 0.8 :until 8 :floor 0.2)", [4, 8], [0.5, 0.2]),
        ("(warmup-linear 0.8 :warmup 4 :until 12 :floor 0.2)", [2, 4, 8, 12, 99], [0.4, 0.8, 0.5, 0.2, 0.2]),
        ("(step-schedule 1.0 :every 3)", [1, 3, 4, 6, 7], [1.0, 1.0, 0.1, 0.1, 0.01]),
        ("(fn (update) (/ 1 update))", [1, 4], [1.0, 0.25]),
    ],
)
def test_schedules(schedule: str, updates: list[int], wanted: list[float]) -> None:
    np.testing.assert_allclose(rates(schedule, updates), wanted, rtol=1e-5, atol=1e-7)


def test_one_cycle_is_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20, cycle_momentum=False)
    wanted = []
    for _ in range(20):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(wanted) < 20:
            schedule.step()
    np.testing.assert_allclose(rates("(one-cycle 0.5 :until 20)", list(range(1, 21))), wanted, rtol=1e-4)


def test_first_updates_of_adam_are_exact_for_betas_near_one() -> None:
    """1 - beta^update is computed without cancellation: the first step is the rate to float32."""
    made = made_with("(adam :rate 1.0 :epsilon 0.0 :betas [0.9999 0.999999])")
    (group,) = made.updates
    state = {
        key: {"w": np.zeros((4, 6), np.float32), "b": np.zeros(6, np.float32)}
        for key in ("parameter", "mean", "variance")
    }
    apply(group, state, {"w": np.full((4, 6), 3.0, np.float32), "b": np.full(6, 3.0, np.float32)}, 1)
    np.testing.assert_allclose(state["parameter"]["w"], -1.0, rtol=3e-7)


def test_groups_frozen_and_untrained_parameters() -> None:
    made = made_with("(adamw :rate 0.1 :weight-decay 0.5)", ':groups (("b" :rate 0.01 :weight-decay 0.5))')
    assert [slot.group for slot in made.parameters] == [0, 1]
    gradients = {"w": np.ones((4, 6), np.float32), "b": np.ones(6, np.float32)}
    state = {
        key: {name: np.zeros_like(g) for name, g in gradients.items()} for key in ("parameter", "mean", "variance")
    }
    state["parameter"] = {name: np.ones_like(g) for name, g in gradients.items()}
    assert [apply(group, state, gradients, 1) for group in made.updates] == pytest.approx([0.1, 0.01])
    np.testing.assert_allclose(state["parameter"]["b"], 1 - 0.01 * 0.5 - 0.01, rtol=1e-6)
    frozen = made_with("(adamw)", ':frozen ("w")')
    assert [(slot.name, slot.group) for slot in frozen.parameters] == [("w", -1), ("b", 0)]
    assert [slot.name for slot in frozen.moments] == ["b/mean", "b/variance"]
    other = made_with("(adamw)", ':groups (("w" :optimizer (sgd :rate 0.5 :momentum 0.9)))')
    assert [(group.parameters, group.moments) for group in other.updates] == [
        (("w",), ("velocity",)),
        (("b",), ("mean", "variance")),
    ]


def test_groups_reach_an_optimizer_behind_a_def() -> None:
    made = load("(def mine (sgd :rate 0.5))" + MODEL.format(optimizer="mine", more=':groups (("b" :rate 0.25))'))
    assert len(made.updates) == 2


def test_a_users_elementwise_rule_is_one_flat_graph_and_another_is_not() -> None:
    rule = "(optimizer (parameter gradient update) :name mine [(- parameter (* 0.1 {step}))])"
    assert [group.flat for group in made_with(rule.format(step="(sign gradient)")).updates] == [True]
    by_shape = made_with(rule.format(step="(/ gradient (sqrt (sum (* gradient gradient) :axis all)))"))
    assert [group.flat for group in by_shape.updates] == [False]
    assert set(by_shape.updates[0].graphs) == {"w", "b"}


def test_a_rule_with_a_wrong_result_is_refused() -> None:
    with pytest.raises(ParenError) as caught:
        made_with("(optimizer (parameter gradient update speed) :name mine [parameter])")
    assert caught.value.code == "E-OPT-002"
    assert (
        caught.value.message
        == "the rule mine gives the list [parameter speed] of new values, not the list [float32[4 6]]"
    )
