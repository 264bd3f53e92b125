"""Forms become a `Program`: the evaluator, its functions, the prelude in paren, and the top-level forms."""
