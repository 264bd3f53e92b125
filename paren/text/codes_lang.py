"""Error codes of the language: names, forms, calls, shapes, parameters, settings."""

from __future__ import annotations

from paren.text.code_registry import register

register(
    "E-NAME-001",
    "an unknown name",
    "A symbol is neither a local name, nor a definition of the file or of its imports, nor part of the prelude.",
    "Correct the spelling, or define the name with (def ...).",
)
register(
    "E-NAME-002",
    "a name that is taken",
    "Two definitions, fields, metrics or forms of one kind have the same name.",
    "Give one of them another name.",
)
register(
    "E-NAME-003",
    "a form of the language as a name",
    "Names of core forms such as if, let and fold cannot be defined or bound anew.",
    "Choose another name.",
)
register(
    "E-NAME-004",
    "a definition in terms of itself",
    "Evaluating a top-level value needs that value. Functions may call themselves, values may not.",
    "Break the circle, or make the definition a function.",
)
register(
    "E-NAME-005",
    "unknown data",
    "`:data` names no defdata of the file.",
    "Name one of the file's defdata forms.",
)
register(
    "E-FORM-001",
    "a form with other parts than it has",
    "Each core and top-level form has a fixed layout; the message shows it.",
    "Write the form as the message shows.",
)
register(
    "E-FORM-002",
    "something that is not a value",
    "A keyword or () stands where a value is needed.",
    "Put the keyword in front of the value that it names; write the empty list as [].",
)
register(
    "E-FORM-003",
    "a keyword without a value",
    "Every keyword is followed by its value.",
    "Write the value after the keyword, or leave the keyword out.",
)
register(
    "E-FORM-004",
    "an unknown option",
    "A form has no option of that name. Options are never ignored.",
    "Correct the spelling; the message lists the options.",
)
register(
    "E-FORM-005",
    "a missing option",
    "The form cannot do without this option.",
    "Write the option.",
)
register(
    "E-FORM-006",
    "an option with another kind of value",
    "The value of an option is of another kind, or outside its range.",
    "Write a value as the message says.",
)
register(
    "E-FORM-007",
    "an unknown top-level form",
    "A file consists of forms such as (def ...), (defmodel ...) and (defrun ...).",
    "Correct the spelling; the message lists the forms.",
)
register(
    "E-FORM-008",
    "a machine in the file",
    "A file names no device, number of GPUs, rank or thread, so that it is the same experiment everywhere.",
    "Choose the device on the command line with --device.",
)
register(
    "E-FORM-009",
    "an unknown kind of data",
    "A defdata form begins with a kind of data that paren does not know.",
    "Correct the spelling; the message lists the kinds.",
)
register(
    "E-FORM-010",
    "options that exclude each other",
    "Two options say the same thing in different ways.",
    "Leave one of them out.",
)
register(
    "E-FORM-011",
    "a missing part of the file",
    "A run needs data, a model and a defrun form.",
    "Add the missing form.",
)
register(
    "E-CALL-001",
    "a wrong number of arguments",
    "A call has more or fewer positional arguments than the function takes.",
    "Compare with the parameters that the message shows.",
)
register(
    "E-CALL-002",
    "an unknown keyword",
    "The function has no keyword of that name.",
    "Correct the spelling; the message lists the keywords.",
)
register(
    "E-CALL-003",
    "a missing keyword",
    "The function has a keyword without a default, and the call does not give it.",
    "Give the keyword.",
)
register(
    "E-CALL-004",
    "a call of something that is not a function",
    "The head of a form is a number, a tensor or the like.",
    "Write a list of values in brackets: [a b].",
)
register(
    "E-CALL-005",
    "a keyword given twice",
    "A call or a form has the same keyword twice.",
    "Leave one of them out.",
)
register(
    "E-CALL-006",
    "calls nested too deep",
    "A function calls itself without an end, or very deeply.",
    "Give the recursion a case in which it ends, or use fold or map.",
)
register(
    "E-CALL-007",
    "an argument of another kind",
    "A function was given a value of another kind than it takes.",
    "Give a value of the kind that the message names.",
)
register(
    "E-CALL-008",
    "a list of another length",
    "A list was taken apart into another number of names, or a position is outside it.",
    "Compare the list with the names.",
)
register(
    "E-CALL-009",
    "an argument that a function refuses",
    "A function states what it needs with (require ...), and the call does not meet it.",
    "Follow the message.",
)
register(
    "E-CALL-010",
    "arithmetic without a result",
    "A computation on numbers has no result: division by zero, the logarithm of 0.",
    "Change the numbers.",
)
register(
    "E-TYPE-001",
    "shapes that do not fit",
    "The shapes of the operands do not fit each other. The notes say where each operand comes from.",
    "Change one of the shapes, or transpose or reshape an operand.",
)
register(
    "E-TYPE-002",
    "a broadcast by accident",
    "Operands of different rank would both be repeated, as [n] against [n 1]: nearly always a forgotten axis.",
    "Reshape one operand; if the product of shapes is meant, give both the same number of axes.",
)
register(
    "E-TYPE-003",
    "an axis outside the shape",
    "Axes are counted from 0, or from the end with negative numbers. The batch is not among them.",
    "Name an axis that the tensor has.",
)
register(
    "E-TYPE-004",
    "an operation over the batch",
    "An operation would mix the examples of a batch. Batches are split over microbatches and devices, so its "
    "result would depend on how.",
    "Compute over the axes of one example; the mean over the batch is taken by paren itself.",
)
register(
    "E-TYPE-005",
    "element types that do not fit",
    "Operands have different element types, or a type that the operation does not take. paren converts nothing by"
    " itself.",
    "Cast an operand: (cast x float32).",
)
register(
    "E-TYPE-006",
    "sizes that an operation refuses",
    "Positions, parts, windows or sizes do not fit the shape of the operand.",
    "Compare the numbers with the shape in the message.",
)
register(
    "E-TYPE-007",
    "a masked loss in another operation",
    "A loss with :ignore carries a mask to the mean over the batch, which only elementwise arithmetic keeps.",
    "Give the mask by :weight of the run.",
)
register(
    "E-TYPE-008",
    "something that is not a shape",
    "A shape is a list of positive integers.",
    "Write the sizes in brackets: [4 8].",
)
register(
    "E-TYPE-009",
    "operands that an operation refuses",
    "The operation's own rule does not allow these operands.",
    "Follow the message.",
)
register(
    "E-TYPE-010",
    "a wrong einsum specification",
    'A specification names each axis of each tensor by a letter: "ab,bc->ac".',
    "Give one group of letters for each tensor, each letter once in it.",
)
register(
    "E-PARAM-001",
    "a parameter declared twice",
    "Two (param ...) forms in one scope have one name.",
    "Give one another name, or put each into its own scope.",
)
register(
    "E-PARAM-002",
    "a parameter outside a model",
    "Parameters belong to a defmodel, whose calls share them.",
    "Move the parameter into the model.",
)
register(
    "E-PARAM-003",
    "a parameter with two shapes",
    "Two calls of one model declare a parameter with different shapes.",
    "Make the shape the same in all calls.",
)
register(
    "E-PARAM-004",
    "a wrong first value",
    "The function given by :init returned something else than a float32 tensor of the parameter's shape.",
    "Return a tensor of the shape that the function gets.",
)
register(
    "E-MODEL-001",
    "an input that does not fit",
    "The argument of a model has another type or shape than the input declares.",
    "Change the declaration or the argument.",
)
register(
    "E-MODEL-002",
    "a tensor outside a graph",
    "Tensors exist inside models, losses, metrics, diagnostics and update rules.",
    "Make it inside a function: (def (name) ...).",
)
register(
    "E-MODEL-003",
    "a model that calls itself",
    "A model's body calls the model again.",
    "Use a function for what repeats.",
)
register(
    "E-MODEL-004",
    "a model without a tensor",
    "The body of a model gives something else than one tensor.",
    "Return one tensor.",
)
register(
    "E-LOSS-001",
    "a loss that is not of the batch",
    "A loss, metric or diagnostic gives one value for each example or token. A single number would make the "
    "result depend on how the batch is split.",
    "Leave the axis of the examples alone; paren takes the mean.",
)
register(
    "E-LOSS-002",
    "a loss that is not a float",
    "The loss is a tensor of integers or booleans, which have no gradient.",
    "Cast it, or use it as a metric.",
)
register(
    "E-LOSS-003",
    "weights that do not fit the loss",
    "`:weight` gives a weight for each value of the loss.",
    "Give it the shape of the loss, or one that is repeated to it.",
)
register(
    "E-DEFRUN-001",
    "no clear length of the run",
    "A run has either :steps or :epochs.",
    "Write one of them.",
)
register(
    "E-DEFRUN-002",
    "more microbatches than examples",
    "A batch cannot be split into more parts than it has examples.",
    "Lower :microbatches or raise :batch.",
)
register(
    "E-DEFRUN-003",
    "microbatches that cannot be shared",
    "`:reproducible-over` divides `:microbatches`.",
    "Change one of the numbers.",
)
register(
    "E-DEFRUN-005",
    "an unknown evaluation series",
    "`:keep` and `:stop-early` name a series of the evaluation, which must be evaluated.",
    "Name evaluation/loss or a metric, and give :evaluate-every or :epochs.",
)
register(
    "E-OPT-001",
    "a pattern without parameters",
    "A pattern of :groups or :frozen matches no parameter, so it would do nothing.",
    "Correct the pattern; the message lists parameters.",
)
register(
    "E-OPT-002",
    "a wrong update rule",
    "An optimizer's rule gives the new parameter and the new moments, in their shapes. Its rate is at least 0, or a "
    "function of the update that gives a number.",
    "Return [parameter moment ...]; give a rate such as 1e-3, or a schedule.",
)
register(
    "E-OPT-003",
    "an update rule that does more",
    "A rule sees the parameter, its gradient, the number of the update and its moments, nothing else.",
    "Move random numbers and models into the loss.",
)
register(
    "E-OPT-004",
    "nothing to train",
    "All parameters are frozen, or the model has none.",
    "Leave a parameter free.",
)
register(
    "E-OPT-005",
    "a keyword that the optimizer lacks",
    "`:groups` gives a keyword that the optimizer does not take.",
    "Use a keyword of the optimizer.",
)
register(
    "E-SET-001",
    "a setting that does not exist",
    "A variant, sweep or --set names something that is not a def of a literal value.",
    "Name one of the settings that the message lists.",
)
register(
    "E-SET-002",
    "a setting of another kind",
    "The new value of a setting has the kind of its def: an integer for an integer, a list for a list. An integer"
    " may stand for a float.",
    "Write a value of the same kind.",
)
register(
    "E-SET-003",
    "a wrong setting",
    "--set takes name=value, each name once.",
    "Write --set rate=1e-3 or --set 'hidden=[32 32]'.",
)
register(
    "E-SET-004",
    "a setting that is not a literal",
    "Settings are numbers, true and false, strings in quotes, and lists of them.",
    "Write the value itself.",
)
register(
    "E-SET-005",
    "an unknown variant",
    "The file has no defvariant of that name.",
    "Name one of the variants that the message lists.",
)
register(
    "E-IMP-001",
    "imports in a circle",
    "A file imports itself, perhaps through others.",
    "Move what both need into a third file.",
)
register(
    "E-IMP-002",
    "an import of something else",
    "Only .paren files are imported.",
    "Name a .paren file.",
)
register(
    "E-STUDY-001",
    "a setting that varies twice",
    "A setting stands in two of defsweep, defcohort and defgrid, or twice in one; or a cost stands twice in deflimits.",
    "Keep one of them.",
)
register(
    "E-STUDY-002",
    "a name that cannot be used",
    "Products, metrics and plots are folders: their names are unique, of letters, digits, - and _. Products are also "
    "parameters of Python functions, where a hyphen is an underscore. `model`, `data`, `seed`, `rng`, `settings`, "
    "`writer` and `jobs` have meanings of their own.",
    "Choose another name.",
)
register(
    "E-STUDY-003",
    "a need that does not exist",
    "`:needs` lists products of the file, `model` or `data`.",
    "Name a defproduct of the file.",
)
register(
    "E-STUDY-004",
    "needs in a circle",
    "Two products need each other.",
    "Break the circle.",
)
register(
    "E-STUDY-005",
    "a keyword that paren gives itself",
    "A Python function of an analysis gets what it needs, and `rng`, `settings`, `writer` and `jobs`, from paren; or "
    "two keywords differ only in hyphens and underscores.",
    "Give the keyword, and the parameter of the function, another name.",
)
register(
    "E-STUDY-006",
    "an analysis function that cannot be called",
    "A function of a product, metric, plot or cost is called with the keywords of its form and with its needs, and has "
    "no parameter for one of them, or one more that nothing fills; or its file cannot be imported; or a file under "
    "`:files` is not there. This is found before anything is computed.",
    "Correct the function, or the form. A hyphen in the form is an underscore in Python.",
)
register(
    "E-STUDY-007",
    "an exception in an analysis function",
    "The user's own code raised; at the end a note names the line, and status.json of the job has its traceback. "
    "Other jobs go on.",
    "Correct the Python file and start again: what was computed before is kept.",
)
register(
    "E-STUDY-008",
    "an analysis function that returns something else",
    "A product is a dict from names to arrays, numbers, texts and lists; a metric is finite numbers, texts, lists and "
    "dicts; a plot is a figure or a dict of figures; a cost is a dict from names to numbers. NaN and infinity are no "
    "results of a metric, and arrays of objects cannot be stored.",
    "Return what the form stands for. None stands for an undefined number.",
)
register(
    "E-STUDY-009",
    "an analysis that costs more than is allowed",
    "The functions under `:cost` foretell what the analysis of one model needs, and `(deflimits ...)` allows less. "
    "Nothing was computed or written.",
    "Reduce the settings that the message names, or raise the limit.",
)
register(
    "E-STUDY-010",
    "a limit of a cost that nobody foretells",
    "A name in `(deflimits ...)` is in no dict that a function under `:cost` returns, for any job of the study. The "
    "limit would never refuse anything.",
    "Write the name as the functions do, or give the form whose cost it is a function under `:cost`.",
)
