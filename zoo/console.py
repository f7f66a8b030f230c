"""What the commands share: errors as one line with an exit code, documents and facts on stdout, KEY=VALUE words."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from zoo.errors import UsageError, ZooError, one_line


class Group(click.Group):
    """A group whose errors are one line, with the exit code that belongs to them."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        shown = "--traceback" in words
        words = [word for word in words if word != "--traceback"]
        try:
            extra["standalone_mode"] = False
            code = super().main(words, *rest, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader, `head` for one, has enough. stdout is closed on its behalf, or Python complains at the exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except ZooError as error:
            code = _fail(error, error.exit_code, shown)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = 2
        except click.UsageError as error:
            hint = f"; `{error.ctx.command_path} --help` explains" if error.ctx else ""
            code = _fail(error, 2, shown, f"{error.format_message().rstrip('.')}{hint}")
        except click.ClickException as error:
            code = _fail(error, error.exit_code, shown, error.format_message())
        except (KeyboardInterrupt, click.Abort) as error:
            code = _fail(error, 130, shown, "interrupted")
        except Exception as error:
            code = _fail(error, 1, shown, f"{type(error).__name__}: {error} (--traceback shows where)")
        sys.exit(code if isinstance(code, int) else 0)


def _fail(error: BaseException, code: int, shown: bool, message: str | None = None) -> int:
    if shown:
        import traceback

        traceback.print_exception(error)
    line = one_line(error if message is None else message)
    click.echo(f"zoo: {line}", err=True)
    return code


def print_json(document: Any) -> None:
    """One JSON document; NaN, which JSON does not have, is refused."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_facts(facts: dict[str, Any], indent: str = "") -> None:
    """Nested facts as aligned lines; what is None or empty is left out."""
    for key, value in facts.items():
        if isinstance(value, dict):
            click.echo(f"{indent}{key}")
            print_facts(value, indent + "  ")
        elif value not in (None, [], (), "", False):
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            click.echo(f"{indent}{key:{max(1, 22 - len(indent))}} {text}")


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE words as a dict, the values read as YAML reads them (numbers, true, null, texts)."""
    import yaml

    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set needs KEY=VALUE, got {word!r}")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            settings[key] = value
        if isinstance(settings[key], str):
            with contextlib.suppress(ValueError):  # YAML takes 1e-3, without a point, for a text
                settings[key] = float(settings[key])
    return settings
