"""Makes the pages of options and of the Python API, which only the site has, from the code, as
Markdown.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from html import escape
from typing import Any

import rich_click as click

import latentsync_trt
from latentsync_trt.cli import COMMANDS, EXAMPLES, main
from latentsync_trt.cli.options import RareOption

ANY_ABOVE = 10**9
"""Upper limits beyond it tell a reader nothing."""

_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_DEFAULT = re.compile(r"\s*\[default: (.+)\]$")


def options() -> str:
    """Every command with its usage and help, and every option once; what an earlier command has is
    linked.
    """
    anchors: dict[tuple[str, ...], str] = {}
    parts = []
    for name, command in _commands():
        known = [
            each
            for each in command.params
            if isinstance(each, click.RichOption) and not each.is_eager
        ]
        new = [each for each in known if _key(each) not in anchors]
        for param in new:
            own = _flag(param).lstrip("-")
            anchors[_key(param)] = own if name == "sync" else f"{_anchor(name)}-{own}"
        links = {flag: anchors[_key(each)] for each in known for flag in each.opts}
        usage = " ".join(
            ["latentsync-trt", name, *command.collect_usage_pieces(click.Context(command))]
        )
        text = _linked(inspect.cleandoc(command.help or ""), {})
        calls = (f"latentsync-trt {call}\n" for call in EXAMPLES.get(name, ()))
        examples = f"```bash\n{''.join(calls)}```\n\n" if name in EXAMPLES else ""
        parts.append(
            f"## {name} {{ #of-{_anchor(name)} }}\n\n```text\n{usage}\n```\n\n{examples}{text}\n"
        )
        for group in dict.fromkeys(_group(each) for each in new):
            parts.append(f"### {group} {{ #{_anchor(name)}-{_anchor(group.lower())} }}\n")
            parts += [_option(each, links) for each in new if _group(each) == group]
        if shared := [_flag(each) for each in known if each not in new]:
            parts.append(
                "Also: " + ", ".join(f"[`{flag}`](#{links[flag]})" for flag in shared) + ".\n"
            )
    return "\n".join(parts)


def _commands() -> Iterator[tuple[str, click.Command]]:
    """All commands and their subcommands; first those whose options others share."""
    for name in dict.fromkeys(("sync", "serve", "export", *COMMANDS)):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        yield name, command
        for below in getattr(command, "commands", {}).values():
            yield f"{name} {below.name}", below


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _key(param: click.RichOption) -> tuple[str, ...]:
    """The same for options that differ in nothing a reader sees."""
    return _flag(param), param.help or "", repr(param.default)


def _flag(param: click.RichOption) -> str:
    return next(flag for flag in param.opts if flag.startswith("--"))


def _group(param: click.RichOption) -> str:
    return str(param.panel or "Options")


def _option(param: click.RichOption, links: dict[str, str]) -> str:
    """Heading with an anchor, a line of values and default, and the help, whose flags are links."""
    text = param.help or ""
    default = stated[1] if (stated := _DEFAULT.search(text)) else ""
    if param.show_default and param.default not in (None, ()):
        if param.is_flag:
            shown = {True: "on", False: "off"}.get(param.default)
        else:
            shown = param.default
        default = ",".join(shown) if isinstance(shown, tuple) else str(shown)
    rare = isinstance(param, RareOption)
    facts = [
        _values(param),
        f"default {_linked(default, {})}" if default else "",
        "repeatable" * param.multiple,
    ]
    facts.append("required" * param.required + "rarely needed, so in no help text" * rare)
    facts.append("shown by `--help-all`" * (param.hidden and not rare))
    flags = ", ".join(f"`{flag}`" for flag in (*param.opts, *param.secondary_opts))
    heading = f"#### {flags} {{ #{links[_flag(param)]} data-toc-label='{_flag(param)}' }}\n"
    line = " · ".join(filter(None, facts))
    line = f"{line}\n{{ .facts }}\n\n" if line else ""
    return f"{heading}\n{line}{_linked(_DEFAULT.sub('', text), links)}\n"


def _values(param: click.RichOption) -> str:
    """What may be given: the choices, the limits, or the kind of value."""
    kind = param.type
    if param.is_flag:
        return ""
    if isinstance(kind, click.Choice):
        return ", ".join(f"`{choice}`" for choice in kind.choices)
    low = getattr(kind, "min", None)
    high = getattr(kind, "max", None)
    if low is not None:
        if high is not None and high < ANY_ABOVE:
            return f"{low:,.9g} to {high:,.9g}"
        return f"{low:g} or more"
    return f"`{param.metavar or kind.name.upper()}`"


def _linked(text: str, links: dict[str, str]) -> str:
    """`text` as Markdown: signs that mean something there are escaped, flags become links to their
    options.
    """

    def flag(match: re.Match[str]) -> str:
        if match[0] in links:
            return f"[`{match[0]}`](#{links[match[0]]})"
        return f"`{match[0]}`"

    plain_and_code = re.split(r"(`[^`]*`)", text)
    plain_and_code[::2] = [
        _FLAG.sub(flag, re.sub(r"([*_\[\]])", r"\\\1", escape(part, quote=False)))
        for part in plain_and_code[::2]
    ]
    return "".join(plain_and_code)


def api() -> str:
    """Signature and docstring of everything in `latentsync_trt.__all__`, with its methods; errors
    last.
    """
    parts = []
    for name in latentsync_trt._MODULES:
        found = getattr(latentsync_trt, name)
        if inspect.isfunction(found):
            parts.append(_entry("##", name, _signature(found), found))
            continue
        body = inspect.getsource(found).split('"""', 2)[2]
        fields = [
            line[4:].partition(" = field(")[0]
            for line in body.splitlines()
            if re.match(r" {4}\w+: ", line)
        ]
        of_options = name.endswith("Options")  # their fields are on the page of options
        parts.append(_entry("##", name, "" if of_options else "\n".join(fields), found))
        for key, value in vars(found).items():
            function = getattr(value, "__func__", None) or getattr(value, "fget", value)
            if inspect.isfunction(function) and not key.startswith("_"):
                code = _signature(function)
                code = code.replace("() -> ", ": ") if isinstance(value, property) else code
                parts.append(_entry("###", f"{name}.{key}", code, value))
    return "\n".join(parts)


def _entry(level: str, name: str, code: str, found: Any) -> str:
    block = f"```python\n{code}\n```\n\n" if code else ""
    return f"{level} {name.rpartition('.')[2]} {{ #{name} }}\n\n{block}{_text(found)}\n"


def _signature(function: Any) -> str:
    """As it is written, without `self`."""
    source = textwrap.dedent(inspect.getsource(function)).partition("def ")[2].partition('"""')[0]
    return re.sub(r"\((\s*)(?:self|cls)(?:,\s*|(?=\)))", r"(\1", source).strip().removesuffix(":")


def _text(found: Any) -> str:
    """The docstring as Markdown: `Args:` and `Raises:` become lists."""
    lines = (inspect.getdoc(found) or "").splitlines()
    marked = [
        f"**{line[:-1].replace('Args', 'Arguments')}**\n" if line in ("Args:", "Raises:") else line
        for line in lines
    ]
    return "\n".join(
        re.sub(r"^ {4,}(?=\S)", "  ", re.sub(r"^ {4}(?=[\w`][\w`., ]*: )", "- ", line))
        for line in marked
    )
