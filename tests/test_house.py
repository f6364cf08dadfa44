"""The house rules, checked: sizes, names, imports, and nothing of a particular machine or
registry."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("lockcore", "bench", "dashboards", "tests")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAME = lambda path: str(path.relative_to(ROOT))  # noqa: E731 - an id of parametrize
MOST_LINES = 600
MOST_FUNCTION_LINES = 60
SAYS_NOTHING = re.compile(r"(utils?|helpers?|common|misc|managers?)")
# Spelled in pieces, so that this file does not find itself.
REGISTRY = re.compile(
    r"py"
    r"pi\.org|python"
    r"hosted|registry\."
    r"npmjs|deb"
    r"ian\.org|crates\."
    r"io|repo1?\."
    r"maven"
)


def tracked_files() -> list[Path]:
    """What git knows; without git (a source archive) every file that is not built."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [
        ROOT / name
        for name in listing.stdout.decode().split("\0")
        if name and (ROOT / name).is_file()
    ]


def long_functions(tree: ast.AST) -> list[tuple[str, int]]:
    """Functions over the limit and how many lines they have, docstring included."""
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    sizes = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions]
    return [(name, lines) for name, lines in sizes if lines > MOST_FUNCTION_LINES]


@pytest.mark.parametrize("path", SOURCES, ids=NAME)
def test_a_file_is_short_and_its_functions_too(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    assert long_functions(ast.parse(text)) == []


def test_the_limit_on_functions_would_notice() -> None:
    body = "\n".join(f"    x = {number}" for number in range(MOST_FUNCTION_LINES))
    assert long_functions(ast.parse(f"def f():\n{body}")) == [("f", MOST_FUNCTION_LINES + 1)]


def test_no_name_says_nothing() -> None:
    assert [str(path) for path in SOURCES if SAYS_NOTHING.fullmatch(path.stem)] == []
    folders = {path.relative_to(ROOT).parent for path in SOURCES}
    named = {folder for folder in folders if any(map(SAYS_NOTHING.fullmatch, folder.parts))}
    # What all three ways of waiting share has no other name.
    assert named == {Path("lockcore/shells/common"), Path("tests/lockcore/shells/common")}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if "tests" not in path.relative_to(ROOT).parts], ids=NAME
)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_no_registry_is_named() -> None:
    named = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        named += [f"{path.relative_to(ROOT)}: {match[0]}" for match in REGISTRY.finditer(text)]
    assert named == []


def imported_by(statement: str) -> set[str]:
    """The modules a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


# the load processes of a question
PROCESSES = "_process"


@pytest.mark.parametrize(
    "package", ["bench.commands", "bench.frame", "bench.experiments", "bench.report", "bench.run"]
)
def test_commands_questions_and_report_never_reach_locust_or_gevent(package: str) -> None:
    folder = ROOT.joinpath(*package.split("."))
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted(folder.rglob("*.py"))
    ]
    modules = [
        module.removesuffix(".__init__") for module in modules if not module.endswith(PROCESSES)
    ]
    loaded = imported_by("\n".join(f"import {module}" for module in modules))
    assert package in loaded
    assert loaded & {"locust", "gevent"} == set()


def test_lockcore_imports_no_event_loop_and_nothing_of_the_bench() -> None:
    loaded = imported_by("import lockcore")
    assert "lockcore" in loaded
    assert loaded & {"gevent", "asyncio", "locust", "opentelemetry", "numpy", "bench"} == set()


# ---------------------------------------------------------------- the size, in code tokens
# A token is a name, a number, a string or an operator. Comments, docstrings and line breaks are
# free, so pressing code gains nothing. A budget may shrink. Whoever lets one grow says in the
# commit what the users get for it. The aim for the whole product is 285,000.
BUDGETS = {"lockcore": 58_760, "bench": 304_000, "dashboards": 6_900}
FREE_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines on which docstrings stand."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_tokens(text: str) -> int:
    """How many tokens of code a text has."""
    free_lines = docstring_lines(ast.parse(text))
    return sum(
        token.type not in FREE_TOKENS and token.start[0] not in free_lines
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_keeps_its_budget_of_code_tokens(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    tokens = sum(code_tokens(path.read_text(encoding="utf-8")) for path in files)
    assert tokens <= BUDGETS[package]


def test_comments_docstrings_and_line_breaks_cost_nothing() -> None:
    assert code_tokens("def f(): return 1") == 7
    assert (
        code_tokens('def f():\n    """What."""\n    # Why.\n\n    return (\n        1\n    )\n')
        == 9
    )


# ---------------------------------------------------------------- code that is read once
MOST_COLUMNS = 100
BUILT_IN_TYPES = {
    "bool",
    "bytes",
    "dict",
    "float",
    "int",
    "list",
    "object",
    "set",
    "str",
    "tuple",
    "type",
}


def is_packed(node: ast.AST) -> bool:
    """True for `a, b = x, y`. A swap packs nothing, nor does `a, b = call()`."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    value = node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    return sorted(map(ast.unparse, target.elts)) != sorted(map(ast.unparse, value.elts))


def loose_walruses(tree: ast.AST) -> list[ast.AST]:
    """Each `:=` outside the head of an `if` or `while` and outside a comprehension."""
    heads: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            heads.append(node.test)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            heads.append(node)
    allowed = {id(inner) for head in heads for inner in ast.walk(head)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.NamedExpr) and id(node) not in allowed
    ]


def conditional_expressions(statement: ast.stmt) -> int:
    """How many conditional expressions a statement has, without the statements in its body."""
    count = 0
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        count += isinstance(node, ast.IfExp)
        bodies = (ast.stmt, ast.excepthandler, ast.match_case)
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, bodies)]
    return count


def ignores_its_result(annotation: ast.expr | None) -> bool:
    """True for a callback whose value nobody uses.

    `Callable[[str], int]` may well be `int`: it converts.
    """
    return (
        annotation is not None
        and re.search(r"Callable\[.*(object|None)\]", ast.unparse(annotation)) is not None
    )


def idle_callbacks(tree: ast.AST) -> list[ast.AST]:
    """Where a built-in type stands for a function that does nothing: `self.wake = int`."""
    values: list[tuple[ast.AST, ast.AST | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            values += [
                (target, node.value) for target in node.targets if isinstance(target, ast.Attribute)
            ]
        elif isinstance(node, ast.AnnAssign) and ignores_its_result(node.annotation):
            values.append((node, node.value))
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            defaults = [*[None] * (len(positional) - len(node.defaults)), *node.defaults]
            pairs = zip(
                [*positional, *node.kwonlyargs], [*defaults, *node.kw_defaults], strict=True
            )
            values += [pair for pair in pairs if ignores_its_result(pair[0].annotation)]
    return [
        node for node, value in values if isinstance(value, ast.Name) and value.id in BUILT_IN_TYPES
    ]


def comments_beside_code(text: str) -> list[tuple[int, str]]:
    """Comments to the right of code that say more than a unit."""
    beside = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        says_more = len(token.string.split()) > 2 and not re.match(r"# (noqa|type:)", token.string)
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip() and says_more:
            beside.append((token.start[0], token.string))
    return beside


def pressed_places(text: str) -> list[str]:
    """Where the code of a file has to be read twice, and why."""
    tree = ast.parse(text)
    places = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if is_packed(node):
            places.append(f"line {line}: several values are assigned at once")
        if isinstance(node, ast.stmt) and conditional_expressions(node) > 1:
            places.append(f"line {line}: one statement has two conditional expressions")
        if isinstance(node, ast.Expr) and isinstance(
            node.value, ast.Tuple | ast.BoolOp | ast.IfExp
        ):
            places.append(f"line {line}: an expression stands for its side effects")
    places += [f"line {node.lineno}: := outside a head" for node in loose_walruses(tree)]
    places += [
        f"line {node.lineno}: a type that does nothing as a callback"
        for node in idle_callbacks(tree)
    ]
    for number, line_text in enumerate(text.splitlines(), 1):
        if len(line_text) > MOST_COLUMNS:
            places.append(f"line {number}: more than {MOST_COLUMNS} columns")
        if re.search(r"#\s*fmt:\s*(skip|off)", line_text):
            places.append(f"line {number}: the formatter is switched off")
    places += [
        f"line {number}: {comment} says more than a unit"
        for number, comment in comments_beside_code(text)
    ]
    return places


@pytest.mark.parametrize("path", SOURCES, ids=NAME)
def test_code_is_read_once(path: Path) -> None:
    assert pressed_places(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("snippet", "place"),
    [
        ("a, self.b = 1, {}", "line 1: several values are assigned at once"),
        ("f((a := 1))", "line 1: := outside a head"),
        (
            "a = (1 if b else 2) + (3 if c else 4)",
            "line 1: one statement has two conditional expressions",
        ),
        (
            "while 1 if a else 2 if b else 3:\n    pass",
            "line 1: one statement has two conditional expressions",
        ),
        ("ready and go()", "line 1: an expression stands for its side effects"),
        ("go(), stay()", "line 1: an expression stands for its side effects"),
        ("self.wake = int", "line 1: a type that does nothing as a callback"),
        ("wake: Callable[[], object] = bool", "line 1: a type that does nothing as a callback"),
        (
            "def f(wake: Callable[[], object] = type): ...",
            "line 1: a type that does nothing as a callback",
        ),
        (
            "def f(*, wake: Callable[[], object] = str): ...",
            "line 1: a type that does nothing as a callback",
        ),
        ("a = 1  # fmt" + ": skip", "line 1: the formatter is switched off"),
        ("a = 1\n# " + "x" * MOST_COLUMNS, "line 2: more than 100 columns"),
        ("a = 1  # what it means", "line 1: # what it means says more than a unit"),
    ],
)
def test_code_that_has_to_be_read_twice_is_noticed(snippet: str, place: str) -> None:
    assert place in pressed_places(snippet)


@pytest.mark.parametrize(
    "snippet",
    [
        "a, b = b, a",
        "a, b = f()",
        "if (a := f()) and (b := g()):\n    pass",
        "c = [a for b in d if (a := b)]",
        "if a if b else c:\n    d = e if f else g",
        "Ns = int",
        "numbers = list(map(int, texts))",
        "def f(kind: type = int): ...",
        "read: Callable[[str], int] = int",
        "a = 1  # bytes",
        "a = 1  # type: ignore[arg-type]",
        "# A sentence above the code.\na = 1",
    ],
)
def test_plain_code_is_not_called_pressed(snippet: str) -> None:
    assert pressed_places(snippet) == []
