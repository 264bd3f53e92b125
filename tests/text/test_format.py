"""The formatter: stable, faithful to forms and comments, and the style itself on hand-written texts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from texts import plain_forms, texts

from paren.text.errors import ParenError
from paren.text.format import format_source
from paren.text.source import Source
from paren.text.tokens import BLOCK_COMMENT, COMMENT, scan


def laid_out(text: str) -> str:
    return format_source(Source("text.paren", text))


def comments(text: str) -> list[str]:
    tokens = scan(Source("text.paren", text), [])
    return [text[token.start : token.end].rstrip() for token in tokens if token.kind in (COMMENT, BLOCK_COMMENT)]


@settings(max_examples=300)
@given(texts)
def test_formatting_again_changes_nothing(text: str) -> None:
    once = laid_out(text)
    assert laid_out(once) == once


@settings(max_examples=200)
@given(texts)
def test_forms_and_comments_stay(text: str) -> None:
    result = laid_out(text)
    assert plain_forms(result) == plain_forms(text)
    assert comments(result) == comments(text)


STYLE = """\
; gpt.paren - what the language page shows
(def layers 12)  (def heads 12)
(def rate 6e-4)

(defvariant smoke (layers 2) (heads 4))

(defdata text
  (text-files "corpus/*.txt"  ; or (token-file "train.bin" :dtype uint16)
    :tokenizer (byte-pair :vocab vocab)
    :length    seq
    :split     ((train 0.95) (validation 0.05))))

(def (block x)
  (let ((x (+ x (scope attention (causal-attention (layer-norm x) :heads heads)))))
    (+ x (scope mlp (linear (gelu (linear (layer-norm x) (* 4 width))) width)))))

(defmodel gpt ((tokens int32 [seq]))
  (let ((table (param embedding [vocab width] :init (normal 0.02)))
        (x     (+ (take table tokens) (param position [seq width] :init (normal 0.02)))))
    (matmul (layer-norm x) (transpose table))))

(defrun
  :data         text
  :loss         (cross-entropy (gpt tokens) targets)  ; one value a token
  :optimizer    (adamw :rate (warmup-cosine rate :warmup 100 :until 2000) :weight-decay 0.1)
  :clip         1.0  ; global gradient norm
  :batch        32   ; examples in one optimizer step
  :microbatches 8

  :verbose
  :seed         1)
"""


def test_a_text_in_the_style_stays_as_it_is() -> None:
    assert laid_out(STYLE) == STYLE


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", ""),
        ("\n\n", ""),
        ("; a\n\n\n\n; b", "; a\n\n; b\n"),
        ("(def a 1)(def b 2)", "(def a 1)  (def b 2)\n"),
        ("(def a 1)\n(def b 2)", "(def a 1)\n(def b 2)\n"),
        ("(def a\n\n 1 )\t; c  ", "(def a\n\n  1)  ; c\n"),
        ("(f a\n b)", "(f a b)\n"),
        ("(def (f x) (+ x 1))", "(def (f x) (+ x 1))\n"),
        ("(def (f x)\n(+ x 1))", "(def (f x)\n  (+ x 1))\n"),
        ("(f a ; why\n b)", "(f a  ; why\n   b)\n"),
        ("(f a b ; why\n)", "(f a\n   b  ; why\n   )\n"),
        ("(f #| one |# a)", "(f #| one |# a)\n"),
        ("(#| one |# f a)", "(\n   #| one |#\n   f a)\n"),
        ("(f a #| one |# b)", "(f a #| one |# b)\n"),
        ("()[ ]", "()  []\n"),
        ("( ; nothing\n)", "(\n ; nothing\n )\n"),
        ('0X1F 1.0e5 "\\x41"', '0X1F  1.0e5  "\\x41"\n'),
    ],
)
def test_small_texts(text: str, result: str) -> None:
    assert laid_out(text) == result


def test_long_lists_of_numbers_are_filled() -> None:
    lines = laid_out("(def table [" + " ".join(str(number) for number in range(100)) + "])").splitlines()
    assert lines[0] == "(def table"
    assert lines[1].startswith("  [0 1 2 3")
    assert lines[-1].endswith(" 98 99])")
    assert all(len(line) <= 100 for line in lines)


def test_a_long_call_is_aligned_or_indented() -> None:
    long = "a" * 60
    assert laid_out(f"(add {long} {long})") == f"(add {long}\n     {long})\n"
    assert laid_out(f"(a-rather-long-name {long} {long})") == f"(a-rather-long-name\n  {long}\n  {long})\n"


def test_two_hundred_levels_are_laid_out() -> None:
    text = "(a " * 200 + ")" * 200
    assert plain_forms(laid_out(text)) == plain_forms(text)


def test_a_wrong_text_is_refused_with_the_reader_s_errors() -> None:
    with pytest.raises(ParenError, match=r"text.paren:1:1: E-TXT-003: `\(` is not closed"):
        laid_out("(def")
