"""The core forms and the functions on numbers and lists: their values, scoping, defaults, recursion."""

from __future__ import annotations

import pytest
from small_programs import load

from paren.lang.elaborate import elaborate
from paren.text.errors import ParenError

REST = """
(defdata d (python "f.py" g :fields ((x float32 [2])) :seen seen))
(defmodel m ((x float32 [2])) (linear x 1))
(defrun :data d :loss (sum (m x)) :optimizer (adam) :batch 2 :steps 1)
"""


def value(text: str, before: str = "") -> object:
    """What an expression evaluates to; it travels through a keyword of the data form."""
    made = load(f"{before}\n(def seen {text}){REST}")
    return dict(made.data.options["keywords"])["seen"]  # type: ignore[call-overload, index]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(+ 1 2 3)", 6),
        ("(+)", 0),
        ("(*)", 1),
        ("(* 2 3 4)", 24),
        ("(- 5)", -5),
        ("(- 10 1 2)", 7),
        ("(/ 6 4)", 1.5),
        ("(/ 4 2)", 2.0),
        ("(// 7 2)", 3),
        ("(// -7 2)", -4),
        ("(% -7 2)", 1),
        ("(pow 2 10)", 1024),
        ("(max 1 7 3)", 7),
        ("(min [4 2 9])", 2),
        ("(sum [1 2 3.5])", 6.5),
        ("(mean [1 2])", 1.5),
        ("(floor 2.7)", 2),
        ("(ceil 2.1)", 3),
        ("(round 2.5)", 2),
        ("(sqrt 9)", 3.0),
        ("(abs -3)", 3),
        ("(= 1 1.0)", True),
        ("(= true 1)", False),
        ('(= "a" "a")', True),
        ("(= [1 2] [1 2])", True),
        ("(/= 1 2)", True),
        ("(<= 1 1)", True),
        ("(not (> 1 2))", True),
        ("(and (> 1 0) (> 2 1))", True),
        ("(and (> 0 1) (/ 1 0))", False),
        ("(or (> 1 0) (/ 1 0))", True),
        ("(if (> 1 2) 3 4)", 4),
        ("(cond ((> 1 2) 1) ((> 2 1) 2) (else 3))", 2),
        ("(cond ((> 1 2) 1) (else 3))", 3),
        ("(let ((a 1) (b (+ a 1)) (a 10)) (+ a b))", 12),
        ("(let (([a [b c]] [1 [2 3]])) [c b a])", (3, 2, 1)),
        ("(let ((a 1) (f (fn () a)) (a 2)) (f))", 1),
        ("(fold (i 4) (x 0) (+ x i))", 6),
        ("(fold (n [1 2 3]) ([a b] [0 1]) [(+ a n) (* b n)])", (6, 6)),
        ("(map (fn (a b) (* a b)) [1 2] [3 4])", (3, 8)),
        ("(map + [1 2])", (1, 2)),
        ("((fn (x :k 2 & rest) [x k rest]) 1 5 6 :k 9)", (1, 9, (5, 6))),
        ("((fn ([a b]) (- a b)) [5 3])", 2),
        ("((fn (x :twice (* 2 x)) twice) 4)", 8),
        ("(range 3)", (0, 1, 2)),
        ("(range 3 :until 10 :step 3)", (3, 6, 9)),
        ("(append [1] [2 3] [])", (1, 2, 3)),
        ("(reverse [1 2])", (2, 1)),
        ("(nth [1 2 3] -1)", 3),
        ("[(first [1 2]) (last [1 2]) (rest [1 2])]", (1, 2, (2,))),
        ("(length [1 2])", 2),
        ('(length "abc")', 3),
        ('(text "n = " 3 " of " [1 2.5])', "n = 3 of [1 2.5]"),
        ("[(number? 1) (integer? 1.0) (list? [1]) (none? none) (function? map)]", (True, False, True, True, True)),
        ("(where true 1 2)", 1),
        ("float32", "float32"),
    ],
)
def test_value(text: str, wanted: object) -> None:
    found = value(text)
    assert found == wanted
    assert type(found) is type(wanted)


def test_recursion_closures_and_order_of_definitions() -> None:
    before = """
    (def late (factorial five))
    (def (factorial n) "n!" (if (= n 0) 1 (* n (factorial (- n 1)))))
    (def (adder n) (fn (x) (+ x n)))
    (def five 5)
    """
    assert value("(list late ((adder 3) 4))", before) == (120, 7)


def test_a_program_may_redefine_prelude_names_for_itself_alone() -> None:
    """silu of the prelude keeps the prelude's sigmoid."""
    assert value("(sigmoid 3)", "(def (sigmoid x) (* 100 x))") == 300
    made = load("(def (relu x) x)(def rank 3)(def seen rank)" + REST.replace("(linear x 1)", "(swiglu (relu x) rank)"))
    assert {slot.name for slot in made.parameters} == {"swiglu.gate.weight", "swiglu.up.weight", "swiglu.down.weight"}


def test_deep_but_finite_recursion_and_long_folds() -> None:
    before = "(def (count n) (if (= n 0) 0 (+ 1 (count (- n 1)))))"
    assert value("(count 250)", before) == 250
    assert value("(fold (i 20000) (x 0) (+ x 1))") == 20000


def test_mutual_recursion_without_end_is_found() -> None:
    with pytest.raises(ParenError) as caught:
        value("(ping 1)", "(def (ping n) (pong n)) (def (pong n) (let ((m (+ n 1))) (if (> m 0) (ping m) 0)))")
    assert caught.value.code == "E-CALL-006"


def test_all_mistakes_of_a_file_are_found_in_the_order_of_the_text() -> None:
    text = """
    (def a (+ 1 "x"))
    (def (f x) (unknown-one x))
    (def b (* a 2))
    (def c (first []))
    """
    with pytest.raises(ParenError) as caught:
        value("(f 1)", text)
    assert [error.code for error in caught.value.errors] == ["E-CALL-007", "E-NAME-001", "E-CALL-007"]


def test_a_mistake_in_a_function_that_runs_often_is_one_mistake() -> None:
    with pytest.raises(ParenError) as caught:
        value("(map (fn (i) (+ i wrong)) (range 50))")
    assert len(caught.value.errors) == 1


def test_a_text_may_have_a_byte_order_mark_and_any_line_ends() -> None:
    text = ("(def seen 1)" + REST).encode()
    changes = (text, b"\xef\xbb\xbf" + text, text.replace(b"\n", b"\r\n"), text.replace(b"\n", b"\r"))
    found = [elaborate("test.paren", read_file=lambda _path, c=change: c) for change in changes]
    assert len({made.sources["test.paren"] for made in found}) == 1
    assert len({tuple(slot.name for slot in made.parameters) for made in found}) == 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ('"n is small" n', "n is small: 3"),
        ('"n is small, not " n', "n is small, not 3"),
        ('"n is small:" n', "n is small: 3"),
        ('"n is small" n [4 5] kind', "n is small: 3, [4 5], mlp"),
        ('"of" n "rows"', "of 3 rows"),
        ('"of" n " rows, at least " 4', "of 3 rows, at least 4"),
        ('n " rows of " [4 5] "columns"', "3 rows of [4 5] columns"),
        ('"(" n n ")"', "(3, 3)"),
        ("n", "3"),
        ('kind "is unknown" n', "mlp is unknown: 3"),
        ('"two texts" ", one sentence"', "two texts, one sentence"),
        ('"-1 is not" -1', "-1 is not: -1"),
    ],
)
def test_the_message_of_a_requirement(parts: str, message: str) -> None:
    with pytest.raises(ParenError) as caught:
        value(f"(require (> n 4) {parts} n)", before='(def n 3) (def kind "mlp")')
    assert (caught.value.code, caught.value.message) == ("E-CALL-009", message)
