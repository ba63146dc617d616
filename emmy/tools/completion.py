"""`emmy --completion bash | zsh`: a script that completes commands, options and their values, made from the parsers' tables.

eval "$(emmy --completion bash)"          in ~/.bashrc, for emmy and emmy-opt
eval "$(emmy --completion zsh)"           in ~/.zshrc, after compinit
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from emmy.pipelines import LEVELS, PIPELINES
from emmy.registry import COMMON_PASSES, PASSES
from emmy.targets import TARGETS

SHELLS = ("bash", "zsh")

VALUES: Mapping[str, tuple[str, ...]] = {
    "target": tuple(TARGETS),
    "gpu": tuple(TARGETS),
    "level": ("input", *LEVELS, *dict.fromkeys(step.name for steps in PIPELINES.values() for step in steps)),
    "passes": (*PASSES, *COMMON_PASSES),
    "accumulate": ("f32", "f16", "hybrid"),
}
"""Values of options that take more than they list, by the option's `dest`; a parser's own `choices` come first."""


@dataclass(frozen=True)
class Place:
    """What may stand at one place of a command line.

    path: the words before it (`emmy view layout`). plain: its commands, if it has any; else there are files. options: those
    that may stand there. values: of the options that take one: what they take, nothing if that is a file or anything.
    """

    path: str
    plain: tuple[str, ...]
    options: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]


def places_of(parser: argparse.ArgumentParser, path: str) -> Iterator[Place]:
    """The parser's place, then those of its commands."""
    plain, options = list[str](), list[str]()
    values: dict[str, tuple[str, ...]] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        choices = tuple(str(choice) for choice in action.choices or VALUES.get(action.dest, ()))
        if isinstance(action.choices, dict):  # commands, each with its parser
            parsers = cast("dict[str, argparse.ArgumentParser | None]", action.choices)
            below += [
                (f"{path} {name}", sub) for name, sub in parsers.items() if isinstance(sub, argparse.ArgumentParser)
            ]
        if not action.option_strings:
            plain += choices
        elif action.nargs != 0:
            values |= dict.fromkeys(action.option_strings, choices)
        options += action.option_strings
    yield Place(path, tuple(plain), tuple(options), values)
    for name, sub in below:
        yield from places_of(sub, name)


def script(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for `shell`, one of `SHELLS`, for every program of `parsers`."""
    places = [place for name, parser in parsers.items() for place in places_of(parser, name)]
    paths = "|".join(f"'{place.path}'" for place in places)
    values = [
        f"    '{place.path}:{option}') found=({' '.join(words)}); known=yes ;;"
        for place in places
        for option, words in place.values.items()
    ]
    words = [f"    '{p.path}') plain=({' '.join(p.plain)}); options=({' '.join(p.options)}) ;;" for p in places]
    text = {"bash": BASH, "zsh": ZSH}[shell]
    for name, new in (("PATHS", paths), ("VALUES", "\n".join(values)), ("WORDS", "\n".join(words))):
        text = text.replace(f"@{name}@", new)
    return text.replace("@PROGRAMS@", " ".join(parsers))


FIND = """  case "$place:$previous" in
@VALUES@
  esac
  case "$place" in
@WORDS@
  esac
  if [[ $known == no ]]; then
    if [[ $current == -* ]]; then found=("${options[@]}"); else found=("${plain[@]}"); fi
  fi
"""
"""The same in both shells: what may stand here. An option whose value is a file finds nothing."""

BASH = f"""# Completion of @PROGRAMS@ for bash: eval "$(emmy --completion bash)"
_emmy() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" place="${{1##*/}}" word known=no
  local -a found=() plain=() options=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$place $word" in
    @PATHS@) place="$place $word" ;;
    esac
  done
{FIND}  COMPREPLY=($(compgen -W "${{found[*]}}" -- "$current"))
}}
complete -o default -F _emmy @PROGRAMS@
"""

ZSH = f"""#compdef @PROGRAMS@
# Completion of @PROGRAMS@ for zsh: eval "$(emmy --completion zsh)"
_emmy() {{
  local current="$words[CURRENT]" previous="$words[CURRENT-1]" place="${{words[1]:t}}" word known=no
  local -a found plain options
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$place $word" in
    @PATHS@) place="$place $word" ;;
    esac
  done
{FIND}  if (( $#found )); then compadd -- "${{found[@]}}"; else _files; fi
}}
compdef _emmy @PROGRAMS@
"""
