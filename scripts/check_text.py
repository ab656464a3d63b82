"""Checks how heavy the code is to read, in nodes of Python's syntax tree: part of `make lint`."""

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path("latentsync_trt")
MOST_NODES = 271_500
MOST_NODES_PER_LINE = {"": 9.1, "audio": 11, "compositing": 12, "face": 11, "measure": 11}
MOST_NODES_PER_LINE |= {"export": 10, "media": 9.5, "quantize": 9.5}
PACKED = (ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
PACKED += (ast.Lambda, ast.NamedExpr)
MOST_PACKED_PER_LINE = 0.05
NOT_CODE = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}


def check(folder: Path, unit: str, value: float, most: float) -> None:
    if value > most:
        sys.exit(f"{folder} has {value:.6g} {unit}; the most is {most:.6g}")


def count(folder: Path) -> Counter[str]:
    counts = Counter[str]()
    for file in folder.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        counts["nodes"] += len(nodes)
        counts["lines"] += len(lines_with_code(file, nodes))
        for node in nodes:
            counts["statements"] += isinstance(node, ast.stmt)
            counts["packed"] += isinstance(node, PACKED)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                counts["tuples"] += isinstance(node.value, ast.Tuple)
    return counts


def lines_with_code(file: Path, nodes: list[ast.AST]) -> set[int]:
    lines = set()
    with tokenize.open(file) as text:
        for token in tokenize.generate_tokens(text.readline):
            if tokenize.tok_name[token.type] not in NOT_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return lines


package = count(PACKAGE)
check(PACKAGE, "nodes", package["nodes"], MOST_NODES)
check(
    PACKAGE, "packed expressions a line", package["packed"] / package["lines"], MOST_PACKED_PER_LINE
)
for room, most in MOST_NODES_PER_LINE.items():
    counts = count(PACKAGE / room)
    check(PACKAGE / room, "nodes a line", counts["nodes"] / counts["lines"], most)
for folder in (PACKAGE, Path("tests"), Path("scripts")):
    counts = count(folder)
    check(folder, "tuple assignments a statement", counts["tuples"] / counts["statements"], 0.006)
