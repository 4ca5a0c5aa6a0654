"""`gofer completion`: completion scripts for shells, made from the parser itself."""

import argparse
import re
from collections.abc import Iterator
from typing import NamedTuple

from gofer._cli.options import parser

FILES = {"FILE", "SCRIPT", "OUT"}
HEAD = "# Completion of the command gofer. Made by: gofer completion {}\n"
# The first column of `gofer top --list`, without its title.
PIDS = "gofer top --list 2>/dev/null | awk 'NR > 1 { print $1 }'"


class Option(NamedTuple):
    """An option of a command."""

    names: list[str]
    help: str
    value: str
    """What follows it: nothing (""), a file ("FILE"), or something that we do not know."""


class Command(NamedTuple):
    """A command with all that can be completed in it."""

    name: str
    help: str
    options: list[Option]
    words: list[str]
    """What its argument may be, if that is one of a few words."""
    argument: str
    """The metavar of its argument."""


def _value(action: argparse.Action) -> str:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return ""
    return str(action.metavar or action.dest)


def _plain(text: str) -> str:
    """Without quotes, and without what is said in brackets at the end."""
    return re.sub(r" \(.*\)$", "", text).replace("`", "").replace("'", "")


def commands() -> list[Command]:
    """What the parser says."""
    found = []
    for action in parser()._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, sub in action.choices.items():
            options = [
                Option(list(a.option_strings), _plain(a.help or ""), _value(a))
                for a in sub._actions
                if a.option_strings
            ]
            arguments = [a for a in sub._actions if not a.option_strings]
            words = [str(word) for a in arguments for word in a.choices or ()]
            argument = str(arguments[0].metavar or "") if arguments else ""
            found.append(Command(name, helps[name], options, words, argument))
    return found


def _names(command: Command) -> str:
    return " ".join(name for option in command.options for name in option.names)


# --- bash ----------------------------------------------------------------------------------------


def _bash_argument(command: Command) -> str:
    if command.words:
        return f'COMPREPLY=($(compgen -W "{" ".join(command.words)}" -- "$cur"))'
    if command.argument in FILES:
        return 'compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur"))'
    if command.argument == "PID":
        return f'COMPREPLY=($(compgen -W "$({PIDS})" -- "$cur"))'
    return ""


def bash() -> Iterator[str]:
    """For bash."""
    found = commands()
    names = " ".join(command.name for command in found)
    yield HEAD.format("bash")
    yield "_gofer() {"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}"
    yield "    COMPREPLY=()"
    yield "    if ((COMP_CWORD == 1)); then"
    yield f'        COMPREPLY=($(compgen -W "{names} --help --version" -- "$cur"))'
    yield "        return"
    yield "    fi"
    yield "    case ${COMP_WORDS[1]} in"
    for command in found:
        yield f"    {command.name})"
        files = [n for o in command.options if o.value in FILES for n in o.names]
        others = [n for o in command.options if o.value and o.value not in FILES for n in o.names]
        yield "        case $prev in"
        if files:
            yield f"        {'|'.join(files)})"
            yield '            compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")); return ;;'
        if others:
            yield f"        {'|'.join(others)}) return ;;"
        yield "        esac"
        yield "        if [[ $cur == -* ]]; then"
        yield f'            COMPREPLY=($(compgen -W "{_names(command)}" -- "$cur"))'
        if argument := _bash_argument(command):
            yield "        else"
            yield f"            {argument}"
        yield "        fi ;;"
    yield "    esac"
    yield "}"
    yield "complete -F _gofer gofer"


# --- zsh -----------------------------------------------------------------------------------------


def _zsh_quoted(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").replace(":", ",")


def _zsh_value(value: str) -> str:
    if not value:
        return ""
    return f":{value}:_files" if value in FILES else f":{value}: "


def zsh() -> Iterator[str]:
    """For zsh."""
    found = commands()
    yield "#compdef gofer"
    yield HEAD.format("zsh")
    yield "_gofer() {"
    yield "    local -a commands"
    yield "    commands=("
    for command in found:
        yield f"        '{command.name}:{_zsh_quoted(command.help)}'"
    yield "    )"
    yield "    if ((CURRENT == 2)); then"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    local chosen=$words[2]"
    yield "    shift words; ((CURRENT--))"
    yield "    case $chosen in"
    for command in found:
        yield f"    {command.name})"
        yield "        _arguments -S \\"
        for option in command.options:
            for name in option.names:
                value = _zsh_value(option.value)
                yield f"            '{name}[{_zsh_quoted(option.help)}]{value}' \\"
        if command.words:
            yield f"            '1:{command.name}:({' '.join(command.words)})' ;;"
        elif command.argument in FILES:
            yield "            '*:file:_files' ;;"
        elif command.argument == "PID":
            yield f"            '1:process:($({_zsh_pids()}))' ;;"
        else:
            yield "            '*: : ' ;;"
    yield "    esac"
    yield "}"
    yield "compdef _gofer gofer"


def _zsh_pids() -> str:
    return 'gofer top --list 2>/dev/null | awk "NR > 1 { print \\$1 }"'


# --- fish ----------------------------------------------------------------------------------------


def fish() -> Iterator[str]:
    """For fish."""
    yield HEAD.format("fish")
    yield "complete -c gofer -f"
    none = "-n __fish_use_subcommand"
    yield f"complete -c gofer {none} -l help -d 'show help'"
    yield f"complete -c gofer {none} -l version -d 'show the version'"
    for command in commands():
        yield f"complete -c gofer {none} -a {command.name} -d '{command.help}'"
        chosen = f"-n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            names = " ".join(
                f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names
            )
            value = "" if not option.value else " -r -F" if option.value in FILES else " -x"
            yield f"complete -c gofer {chosen} {names}{value} -d '{option.help}'"
        if command.words:
            yield f"complete -c gofer {chosen} -a '{' '.join(command.words)}'"
        elif command.argument in FILES:
            yield f"complete -c gofer {chosen} -F"
        elif command.argument == "PID":
            pids = PIDS.replace("'", '"').replace("$", r"\$")
            yield f"complete -c gofer {chosen} -a '({pids})'"


def command(options: argparse.Namespace) -> int:
    """Print it."""
    print("\n".join({"bash": bash, "zsh": zsh, "fish": fish}[options.shell]()))
    return 0
