"""What a program holds: names of parameters, shared graphs, random sites, bounds, settings, studies, examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_programs import call, example, load, loss_of, parameters, program

from paren.ir.evaluate import evaluate
from paren.ir.program import Analysis, Factor, Program
from paren.ir.verify import verify
from paren.lang.elaborate import elaborate


def names(made: Program) -> list[str]:
    return [slot.name for slot in made.parameters]


def test_parameters_are_named_by_scope_and_siblings_are_numbered() -> None:
    made = program(
        "(x float32 [4])",
        """(let ((h (fold (i 2) (h x) (scope (block i) (linear (linear h 4) 4))))
                 (h (scope head (scope head (linear h 4))))
                 (h (scope head (+ h (param scale [4] :init 1)))))
            (linear h 1))""",
    )
    layers = ["block.0.linear", "block.0.linear-1", "block.1.linear", "block.1.linear-1", "head.head.linear"]
    found = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    assert names(made) == [*found, "head-1.scale", "linear.weight", "linear.bias"]


def test_several_models_are_prefixed_and_call_each_other() -> None:
    made = load(
        """
        (defdata d (python "f.py" g :fields ((x float32 [4]))))
        (defmodel encoder ((x float32 [4])) (linear x 2))
        (defmodel decoder ((z float32 [2])) (linear z 4))
        (defmodel both ((x float32 [4])) (decoder (encoder x)))
        (defrun :data d :loss (mean-squared-error (both x) x) :optimizer (adam) :batch 2 :steps 1)
        """
    )
    assert names(made) == [
        "encoder.linear.weight",
        "encoder.linear.bias",
        "decoder.linear.weight",
        "decoder.linear.bias",
    ]
    assert [model.name for model in made.models] == ["encoder", "decoder", "both"]
    x = np.ones((2, 4), np.float32)
    values = parameters(made)
    code = evaluate(made.models[0].forward(2), {**values, "x": x})["result"]
    whole = evaluate(made.models[2].forward(2), {**values, "x": x})["result"]
    np.testing.assert_array_equal(evaluate(made.models[1].forward(2), {**values, "z": code})["result"], whole)


def test_a_model_that_the_run_does_not_use_is_noted() -> None:
    made = program("(x float32 [4])", "(linear x 1)", before="(defmodel spare ((x float32 [4])) (linear x 2))")
    assert [model.name for model in made.models] == ["m"]
    assert all(name.startswith("m.") for name in names(made))
    assert made.notes == ("test.paren:1:1: the model spare is not used by the run, so it is not trained",)


def test_a_model_called_again_is_the_same_nodes() -> None:
    """Metrics that call the model on the same inputs add no second pass; on other inputs they share parameters."""
    text = "(linear (relu (linear x 8)) 1)"
    once = program("(x float32 [4])", text)
    twice = program("(x float32 [4])", text, more=" :metrics ((a (m x)) (b (abs (m x))))")
    assert len(twice.evaluate.nodes) <= len(once.evaluate.nodes) + 4
    other = program("(x float32 [4]) (y float32 [4])", "(linear (+ x y) 1)", loss="(sum (+ (m x y) (m y x)))")
    assert names(other) == ["linear.weight", "linear.bias"]
    assert sum(node.op.name == "contract" for node in other.loss.nodes) in (1, 2)


def test_graphs_are_sound() -> None:
    """The verifier accepts every graph of the examples, and their inputs are what the conventions say."""
    for path in sorted(example("").glob("*.paren")):
        made = elaborate(path, variant="smoke")
        graphs = [made.loss, made.evaluate, made.initialize, *(graph for _, graph in made.diagnostics.values())]
        graphs += [graph for group in made.updates for graph in group.graphs.values()]
        graphs += [model.forward(2) for model in made.models]
        for graph in graphs:
            verify(graph, "lang")
        known = {slot.name for slot in made.parameters}
        fields = {field.name for field in made.data.fields}
        for graph in (made.loss, made.evaluate):
            for node in graph.inputs:
                name, role = node.attrs["name"], node.attrs["role"]
                assert (
                    name
                    in {"state": known, "batch": fields | {"$valid", "$rows"}, "scalar": {"$seed", "$step"}}[str(role)]
                )
        assert set(made.initialize.outputs) == known
        assert [node.attrs["name"] for node in made.initialize.inputs] == ["$seed"]
        assert made.loss.outputs["loss"].shape == made.loss.outputs["weight"].shape


@pytest.mark.parametrize("name", ["gpt", "digits", "regression"])
def test_examples_have_a_smoke_variant(name: str) -> None:
    whole, smoke = elaborate(example(f"{name}.paren")), elaborate(example(f"{name}.paren"), variant="smoke")
    assert sum(s.type.size for s in smoke.parameters) < sum(s.type.size for s in whole.parameters)


def test_rows_are_those_of_the_microbatches_in_a_call() -> None:
    text = """
    (defdata d (python "f.py" g :fields ((x float32 [4]))))
    (defmodel m ((x float32 [4])) (linear x 1))
    (defrun :data d :loss (sum (m x)) :optimizer (adam) :batch 10 :microbatches 4 :steps 1)
    """
    assert load(text).rows == 3
    assert load(text, microbatches=2).rows == 5
    made = load(text, stacking=2)
    assert made.rows == 6
    assert made.loss.outputs["loss"].shape == (6,)


DROPOUT = "(let ((_ (param unused [1] :init 0))) (dropout (+ (dropout x 0.25) 1) 0.25))"


def dropped(made: Program, step: int, rows: list[int]) -> np.ndarray:
    x = {"x": np.ones((len(rows), 2000), np.float32)}
    position = {"$step": np.uint32(step).reshape(()), "$rows": np.array(rows, np.uint32)}
    return loss_of(made, {**x, **position}, graph="loss")["loss"]


def test_dropout_is_off_outside_training_and_scales_what_stays() -> None:
    made = program("(x float32 [2000])", DROPOUT, loss="(m x)")
    found = dropped(made, 0, [0, 1, 2])
    kept = found != 0
    assert 0.72 < kept.mean() < 0.78
    np.testing.assert_allclose(np.unique(found), [0, 1 / 0.75, (1 / 0.75 + 1) / 0.75], rtol=1e-6)
    assert abs(found.mean() - 2) < 0.05
    np.testing.assert_array_equal(call(made, {"x": np.ones((3, 2000), np.float32)}), np.full((3, 2000), 2.0))
    off = loss_of(made, {"x": np.ones((3, 2000), np.float32)}, graph="evaluate")["loss"]
    np.testing.assert_array_equal(off, np.full((3, 2000), 2.0))


def test_random_numbers_belong_to_the_example_and_the_step() -> None:
    """The mask of an example depends on its number in the global batch, not on its place in a microbatch."""
    made = program("(x float32 [2000])", DROPOUT, loss="(m x)")
    first, moved = dropped(made, 3, [4, 5, 6]), dropped(made, 3, [6, 4, 9])
    np.testing.assert_array_equal(first[0], moved[1])
    np.testing.assert_array_equal(first[2], moved[0])
    assert (first[0] != first[1]).any()
    assert (dropped(made, 4, [4, 5, 6]) != first).any()


def test_sites_of_equal_layers_differ() -> None:
    """Two dropouts with equal arguments draw different numbers."""
    made = program(
        "(x float32 [2000])",
        "(let ((_ (param unused [1] :init 0))) (- (dropout x 0.5) (dropout x 0.5)))",
        loss="(m x)",
    )
    assert (dropped(made, 0, [0, 1, 2]) != 0).mean() > 0.4


def first_values(made: Program, seed: int = 0) -> dict[str, np.ndarray]:
    return evaluate(made.initialize, {"$seed": np.uint32(seed).reshape(())})


INITIALISERS = {
    "0.5": lambda n, a, b: (n == 0.5).all(),
    "zeros": lambda n, a, b: (n == 0).all(),
    "ones": lambda n, a, b: (n == 1).all(),
    "(fill 3)": lambda n, a, b: (n == 3).all(),
    "(normal 0.1 :mean 2)": lambda n, a, b: abs(n.mean() - 2) < 0.01 and abs(n.std() - 0.1) < 0.005,
    "(uniform -1 3)": lambda n, a, b: n.min() >= -1 and n.max() < 3 and abs(n.mean() - 1) < 0.05,
    "(truncated-normal 0.5)": lambda n, a, b: np.abs(n).max() <= 1 and abs(n.std() - 0.5 * 0.8796) < 0.01,
    "(glorot-uniform)": lambda n, a, b: (
        abs(n.std() * ((a + b) / 2) ** 0.5 - 1) < 0.03 and np.abs(n).max() <= (6 / (a + b)) ** 0.5
    ),
    "(glorot-normal)": lambda n, a, b: abs(n.std() * ((a + b) / 2) ** 0.5 - 1) < 0.03,
    "(xavier-uniform :gain 2)": lambda n, a, b: abs(n.std() * ((a + b) / 2) ** 0.5 - 2) < 0.06,
    "(he-normal)": lambda n, a, b: abs(n.std() * a**0.5 - 2**0.5) < 0.05,
    "(kaiming-uniform :gain 1)": lambda n, a, b: abs(n.std() * a**0.5 - 1) < 0.03,
    "(fn (shape) (random-normal shape))": lambda n, a, b: abs(n.std() - 1) < 0.03,
}


@pytest.mark.parametrize("text", INITIALISERS)
def test_initialisers(text: str) -> None:
    """Distribution, dependence on the seed, independence of other parameters."""
    made = program("(x float32 [80])", f"(matmul x (param w [80 120] :init {text}))")
    found = first_values(made)["w"]
    assert INITIALISERS[text](found, 80, 120)
    more = program("(x float32 [80])", f"(matmul (linear x 80) (param w [80 120] :init {text}))")
    np.testing.assert_array_equal(first_values(more)["w"], found)
    if found.std() > 0:
        assert (first_values(made, 1)["w"] != found).any()


def test_equal_layers_start_with_different_weights() -> None:
    made = program("(x float32 [4])", "(linear (linear x 4) 4)")
    values = first_values(made)
    assert (values["linear.weight"] != values["linear-1.weight"]).any()


def test_kernels_of_convolutions_count_their_inputs() -> None:
    made = program("(x float32 [8 9 9])", "(conv2d x 64 :kernel 3 :init (he-normal))")
    assert abs(first_values(made)["conv2d.weight"].std() * (8 * 9) ** 0.5 - 2**0.5) < 0.05


def bounds(made: Program) -> set[tuple[str, int, int, int | None]]:
    return {(bound.field, bound.low, bound.high, bound.ignore) for bound in made.bounds}


def test_bounds_follow_moves_and_casts_and_a_computed_index_is_noted() -> None:
    moved = program("(ids int64 [4])", "(embedding (reshape (cast ids int32) [2 2]) 9 3)")
    assert bounds(moved) == {("ids", 0, 9, None)}
    computed = program("(ids int32 [4])", "(embedding (+ ids 1) 9 3)")
    assert bounds(computed) == set()
    assert computed.notes == (
        "test.paren:3:31: indices computed from the field ids are not checked before step 1; "
        "those outside 0 to 8 count as the nearest",
    )
    chosen = program("(x float32 [4])", "(embedding (argmax x) 4 3)")
    assert (chosen.bounds, chosen.notes) == ((), ())


SETTINGS = """
(def width 8) (def rate 1e-3) (def name "a") (def deep true) (def hidden [4 4]) (def twice (* 2 width))
(defvariant smoke (width 2) (rate 1) (hidden []))
(defvariant other (width 3) (defsweep (rate 0.5 1e-3)) (defcohort))
(defsweep (width 8 16) (rate 1e-2 1e-3 1e-2))
(defcohort (name "a" "b"))
(defgrid (deep true false))
(defdata d (python "f.py" g :fields ((x float32 [4])) :twice twice :hidden hidden :name name))
(defmodel m ((x float32 [4])) (linear x width))
(defrun :data d :loss (mean (m x)) :optimizer (adam :rate rate) :batch 2 :steps 1)
"""


def setting_values(made: Program) -> dict[str, object]:
    return {setting.name: setting.value for setting in made.settings}


def test_settings_win_over_the_variant_which_wins_over_the_file() -> None:
    assert setting_values(load(SETTINGS)) == {
        "width": 8,
        "rate": 1e-3,
        "name": "a",
        "deep": True,
        "hidden": (4, 4),
    }
    smoke = load(SETTINGS, variant="smoke")
    assert setting_values(smoke) | {"name": "", "deep": 0} == {
        "width": 2,
        "rate": 1.0,
        "name": "",
        "deep": 0,
        "hidden": (),
    }
    assert type(setting_values(smoke)["rate"]) is float
    both = load(SETTINGS, variant="smoke", overrides=["width=5", "hidden=[7 8 9]", 'name="two words"', "deep=false"])
    assert setting_values(both) == {"width": 5, "rate": 1.0, "name": "two words", "deep": False, "hidden": (7, 8, 9)}
    assert dict(both.data.options["keywords"]) == {"twice": 10, "hidden": (7, 8, 9), "name": "two words"}  # type: ignore[call-overload]
    (width,) = [setting for setting in both.settings if setting.name == "width"]
    assert (width.span.source.name, str(width.span)) == ("<command line>", "<command line>:1:7")


def factors(found: tuple[Factor, ...]) -> dict[str, tuple[object, ...]]:
    return {factor.name: factor.values for factor in found}


def test_sweeps_list_alternatives_and_variants_replace_them() -> None:
    """A value equal to the one in force vanishes from a sweep; a cohort keeps all its values."""
    study = load(SETTINGS).study
    assert factors(study.sweep) == {"width": (16,), "rate": (1e-2,)}
    assert factors(study.cohort) == {"name": ("a", "b")}
    assert factors(study.grid) == {"deep": (True, False)}
    other = load(SETTINGS, variant="other").study
    assert (factors(other.sweep), other.cohort) == ({"rate": (0.5,)}, ())
    assert factors(load(SETTINGS, overrides=["width=16"]).study.sweep) == {"width": (8,), "rate": (1e-2,)}


def test_analyses_come_in_the_order_of_their_needs() -> None:
    made = program(
        "(x float32 [4])",
        "(linear x 1)",
        before="""
        (defplot picture (python "f.py" draw) :needs (inference) :over cohort)
        (defproduct inference (python "f.py" infer :cases (* 2 8)) :needs (model seen data) :cost cost-of-inference)
        (defproduct seen (python "f.py" observe :files ("a.csv" "b/c.csv") :seed 3))
        """,
    )
    found = made.study.analyses
    assert [analysis.name for analysis in found] == ["seen", "inference", "picture"]
    assert (found[0].files, found[0].keywords, found[0].cost) == (("a.csv", "b/c.csv"), (("seed", 3),), None)
    assert isinstance(found[1], Analysis)
    assert (found[1].kind, found[1].keywords) == ("product", (("cases", 16),))
    assert (found[1].needs, found[1].cost) == (("model", "seen", "data"), "cost-of-inference")
    assert found[2].over == "cohort"


def test_an_analysis_knows_the_settings_behind_its_keywords() -> None:
    """Also those that reach it through functions and computed definitions."""
    made = program(
        "(x float32 [4])",
        "(linear x 1)",
        before="""
        (def cases 16) (def unused 3) (def side 8) (def width [4 5]) (def area (* side side))
        (def (doubled number) (* 2 number (length width)))
        (defproduct seen (python "f.py" observe :points (doubled area) :cases cases))
        (deflimits (evaluations (* 1000 cases)) (bytes 2e9))
        """,
    )
    (seen,) = made.study.analyses
    assert (seen.keywords, seen.settings) == ((("points", 256), ("cases", 16)), ("cases", "side", "width"))
    assert [(limit.name, limit.most) for limit in made.study.limits] == [("evaluations", 16000.0), ("bytes", 2e9)]


RUN = """
(defdata d (python "f.py" g :fields ((x float32 [4]))))
(defmodel m ((x float32 [4])) (linear x 1))
(def accuracy-of 1)
(defrun :data d :loss (sum (m x)) :optimizer (adam) :batch 16 :microbatches 4 :epochs 3 :clip 1 :seed 7
  :evaluate-every 5 :checkpoint-every 10 :log-every 2 :keep-checkpoints 9 :keep (best evaluation/size :max)
  :stop-early (evaluation/loss :min :patience 4) :on-nonfinite skip :skip-limit 5 :average 0.99 :precision off
  :from "w.safetensors" :names (("a" "linear.weight")) :reproducible-over 2 :metrics ((size (abs (m x)))))
"""


def test_all_settings_of_a_run_arrive() -> None:
    run = load(RUN).run
    assert (run.batch, run.microbatches, run.steps, run.epochs, run.clip, run.seed) == (16, 4, None, 3, 1.0, 7)
    assert (run.evaluate_every, run.checkpoint_every, run.log_every, run.keep_checkpoints) == (5, 10, 2, 9)
    assert run.keep_best is not None
    assert run.stop_early is not None
    assert (run.keep_best.metric, run.keep_best.mode, run.keep_best.patience) == ("evaluation/size", "max", None)
    assert (run.stop_early.metric, run.stop_early.mode, run.stop_early.patience) == ("evaluation/loss", "min", 4)
    assert (run.on_nonfinite, run.skip_limit, run.average, run.precision) == ("skip", 5, 0.99, "off")
    assert (run.start_from, run.start_names, run.reproducible_over) == ("w.safetensors", (("a", "linear.weight"),), 2)
    assert str(run.spans["clip"]).startswith("test.paren:5:")


def test_a_file_and_its_imports_are_one_program(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "layers.paren").write_text('(import "sizes.paren")\n(def (tower x) (linear x width))\n')
    (tmp_path / "parts" / "sizes.paren").write_text("(def width 3)\n")
    main = tmp_path / "main.paren"
    main.write_text(
        """
        (import "parts/layers.paren") (import "parts/sizes.paren")
        (defdata d (python "f.py" g :fields ((x float32 [4]))))
        (defmodel m ((x float32 [4])) (tower x))
        (defrun :data d :loss (mean (m x)) :optimizer (adam) :batch 2 :steps 1)
        """
    )
    made = elaborate(main, overrides=["width=5"])
    assert made.parameters[0].type.shape == (4, 5)
    assert [Path(path).name for path in made.sources] == ["main.paren", "layers.paren", "sizes.paren"]


@pytest.mark.parametrize(
    ("form", "arguments", "options"),
    [
        (
            '(text-files "a/*.txt" "b.txt" :tokenizer (byte-pair :vocab 512) :length 8 :stride 4 :boundary separate'
            " :split ((train 0.9) (validation 0.1)) :evaluation-batch 4 :evaluation-count 64)",
            ("a/*.txt", "b.txt"),
            {
                "length": 8,
                "stride": 4,
                "evaluation-batch": 4,
                "evaluation-count": 64,
                "split": (("train", 0.9), ("validation", 0.1)),
                "tokenizer": ("byte-pair", 512),
                "boundary": ("separate",),
            },
        ),
        ("(python-docs :tokenizer bytes :length 8)", (), {"length": 8, "tokenizer": ("bytes",)}),
        (
            '(python-stdlib :tokenizer "t/tokenizer.json" :length 8 :boundary "<|end|>")',
            (),
            {"length": 8, "tokenizer": ("file", "t/tokenizer.json"), "boundary": ("token", "<|end|>")},
        ),
        (
            '(token-file "train.bin" :dtype uint16 :length 8 :validation "val.bin")',
            ("train.bin",),
            {"length": 8, "dtype": "uint16", "validation": "val.bin"},
        ),
    ],
)
def test_text_data(form: str, arguments: tuple[str, ...], options: dict[str, object]) -> None:
    made = load(
        f"""
        (defdata text {form})
        (defmodel m ((tokens int32 [8])) (linear (embedding tokens 512 4) 512))
        (defrun :data text :loss (cross-entropy (m tokens) targets) :optimizer (adam) :batch 2 :steps 1)
        """
    )
    assert (made.data.arguments, dict(made.data.options)) == (arguments, options)
    assert [str(field.type) for field in made.data.fields] == ["int32[8]", "int32[8]"]
    assert bounds(made) == {("tokens", 0, 512, None), ("targets", 0, 512, None)}


def test_tables_name_the_columns_of_a_field() -> None:
    made = load(
        """
        (defdata t (arrays "t.csv" :fields ((x float32 [2]) (y int32 [])) :columns ((x "a" "b") (y "label"))))
        (defmodel m ((x float32 [2])) (linear x 3))
        (defrun :data t :loss (cross-entropy (m x) y) :optimizer (adam) :batch 2 :steps 1)
        """
    )
    assert dict(made.data.options) == {"columns": (("x", ("a", "b")), ("y", ("label",)))}


def test_a_diagnostic_is_a_value_for_each_example() -> None:
    made = program(
        "(x float32 [4])", "(linear x 3)", before="(defdiagnostic scale (max (abs (m x))) :every 5 :reduce max)"
    )
    declared, graph = made.diagnostics["scale"]
    assert (declared.every, declared.reduce) == (5, "max")
    assert graph.outputs["value"].shape == graph.outputs["weight"].shape == (3,)


def test_a_study_over_many_small_networks() -> None:
    """The shape of a study in simulation-based inference: cohort, sweep, products."""
    text = """
    (def prior "uniform") (def rows 70000) (def rate 1e-3) (def hidden [64 64]) (def dimension 1) (def replica 0)
    (defvariant smoke (rows 1024) (hidden [32 32]) (defsweep))
    (defcohort (prior "uniform" "normal" "exponential" "grid") (replica 0 1 2))
    (defsweep (rows 50000 150000) (rate 0.01 0.0001))
    (defdata pairs (python "gaussian.py" joint-and-marginal :prior prior :rows rows :dimension dimension
      :fields ((x float32 [dimension]) (theta float32 [dimension]) (label int32 []))))
    (defmodel ratio ((x float32 [dimension]) (theta float32 [dimension])) (mlp (concat x theta) hidden 1))
    (defrun :data pairs :loss (sigmoid-cross-entropy (ratio x theta) label)
            :optimizer (adam :rate rate) :batch 128 :epochs 5 :keep (best evaluation/loss :min))
    (defproduct observations (python "gaussian.py" observations :cases 1024))
    (defproduct inference    (python "gaussian.py" infer) :needs (model observations))
    (defmetric  coverage     (python "gaussian.py" coverage) :needs (inference))
    (defplot    posteriors   (python "gaussian.py" draw-posteriors) :needs (inference))
    """
    whole, smoke = load(text), load(text, variant="smoke")
    assert [len(factor.values) for factor in (*whole.study.sweep, *whole.study.cohort)] == [2, 2, 4, 3]
    assert (smoke.study.sweep, len(smoke.study.cohort), len(smoke.study.analyses)) == ((), 2, 4)
    assert whole.loss.outputs["loss"].shape == (128,)
